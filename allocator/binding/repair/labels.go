// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// setLabels has the node's labels say which GPUs it has, for selectors of pods and of queues' flavors.
// They stay as they are while its agent shows none.
func (r *Reconciler) setLabels(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if r.NodeLabels == nil || known == nil || len(known.Status.Devices) == 0 {
		return nil
	}
	has, is := r.NodeLabels(node)
	if !is {
		return nil
	}
	changed := map[string]any{}
	for key, want := range labelsOf(known.Status.Devices) {
		if got, set := has[key]; want == "" && set {
			changed[key] = nil
		} else if want != got {
			changed[key] = want
		}
	}
	if len(changed) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": changed}})
	if err != nil {
		return err
	}
	err = r.Binder.Client.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

// labelsOf are the labels for devices, at least one; an empty value is no label.
func labelsOf(devices []v1alpha1.DeviceStatus) map[string]string {
	model, least := devices[0].Model, devices[0].Mem
	for _, d := range devices {
		if least = min(least, d.Mem); d.Model != model {
			model = ""
		}
	}
	return map[string]string{
		v1alpha1.LabelGPUModel:  labelValue(model),
		v1alpha1.LabelGPUCount:  fmt.Sprint(len(devices)),
		v1alpha1.LabelGPUMemMiB: fmt.Sprint(least),
	}
}

var notInLabels = regexp.MustCompile(`[^A-Za-z0-9_.]+`)

// labelValue is a model as a label may have it: NVIDIA-A100-SXM4-80GB.
func labelValue(model string) string {
	text := notInLabels.ReplaceAllString(model, "-")
	return strings.Trim(text[:min(len(text), validation.LabelValueMaxLength)], "-_.")
}
