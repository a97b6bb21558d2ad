// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/hex"
	"fmt"
	"strings"
)

const uuidPrefix = "GPU-"

// parseUUID reads "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
func parseUUID(s string) ([uuidBytes]byte, error) {
	var uuid [uuidBytes]byte
	digits, ok := strings.CutPrefix(s, uuidPrefix)
	if ok && len(digits) == 36 && strings.Count(digits, "-") == 4 {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
		if err == nil && formatUUID(b) == uuidPrefix+strings.ToLower(digits) {
			copy(uuid[:], b)
			return uuid, nil
		}
	}
	return uuid, fmt.Errorf("UUID %q: want the form GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx that nvidia-smi -L prints", s)
}

// IsUUID reports whether s is a UUID that limits can hold.
func IsUUID(s string) bool {
	_, err := parseUUID(s)
	return err == nil
}

// FormatUUID is the form that NVML prints of the 16 bytes that CUDA returns.
func FormatUUID(b [16]byte) string { return formatUUID(b[:]) }

func formatUUID(b []byte) string {
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", uuidPrefix, b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
