// SPDX-License-Identifier: Apache-2.0

package advice

import api "vernier.dev/vernier/api/v1alpha1"

// Freeable is what the workload's running slices hold above the advice: percent of GPUs and MiB, 0 or
// more. Advice of low confidence frees nothing.
func Freeable(s *api.SliceAdviceStatus) (core int64, mem api.MiB) {
	if s.Confidence != api.ConfidenceMedium && s.Confidence != api.ConfidenceHigh {
		return 0, 0
	}
	slices := int64(s.Slices)
	return slices * max(0, int64(s.Request.Core-s.Advice.Core)), api.MiB(slices) * max(0, s.Request.MemMiB-s.Advice.MemMiB)
}
