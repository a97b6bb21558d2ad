// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

var (
	kindForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,62}$`)
	// cronNumber is what a CronJob adds to the names of its Jobs: minutes since 1970.
	cronNumber = regexp.MustCompile(`-[0-9]{8,11}$`)
)

// Workload is KIND/NAME of what made a pod. It is its controller, the Deployment of a ReplicaSet, and of the Jobs of a
// CronJob their common name. Without a controller it is the pod, and empty while that has no name. A
// tenant writes owner references: one that no controller can have counts as none.
func Workload(pod *metav1.ObjectMeta) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || !kindForm.MatchString(owner.Kind) || len(validation.IsDNS1123Subdomain(owner.Name)) > 0 {
		if pod.Name == "" {
			return ""
		}
		return "Pod/" + pod.Name
	}
	switch hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; owner.Kind {
	case "ReplicaSet":
		if name, made := strings.CutSuffix(owner.Name, "-"+hash); made && hash != "" && name != "" {
			return "Deployment/" + name
		}
	case "Job":
		if name := cronNumber.ReplaceAllString(owner.Name, ""); name != "" {
			return "Job/" + name
		}
	}
	return owner.Kind + "/" + owner.Name
}

// ObjectName is the name of the SliceAdvice of a workload's container, such as that of the main
// container of a Deployment. A longer one is cut, and ends with a hash of the whole.
func ObjectName(workload, container string) string {
	kind, name, _ := strings.Cut(workload, "/")
	full := strings.ToLower(kind) + "." + name + "." + container
	if len(full) <= validation.DNS1123SubdomainMaxLength {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	hash := "-" + hex.EncodeToString(sum[:8])
	return strings.TrimRight(full[:validation.DNS1123SubdomainMaxLength-len(hash)], "-.") + hash
}
