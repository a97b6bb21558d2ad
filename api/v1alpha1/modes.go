// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Mode is how a share is enforced.
type Mode string

const (
	// ModeAuto takes the strongest that the node and the request allow.
	ModeAuto Mode = "auto"
	// ModeLimiter enforces by libvgpu inside the container: cooperative.
	ModeLimiter Mode = "limiter"
	// ModeMPS is a client of the device's MPS server, on a device with no other
	// slices than such.
	ModeMPS Mode = "mps"
	// ModeMIG is a hardware partition, on devices in MIG mode.
	ModeMIG Mode = "mig"
	// ModeExclusive gives whole devices.
	ModeExclusive Mode = "exclusive"
)

// Placeable reports whether a slice can be in that mode in this release.
func (m Mode) Placeable() bool {
	return m == ModeLimiter || m == ModeExclusive || m == ModeMIG || m == ModeMPS
}

// OneDevice reports whether a container in that mode can have slices of one device
// only. A program sees one instance of MIG, and is a client of one MPS server.
func (m Mode) OneDevice() bool { return m == ModeMIG || m == ModeMPS }

// ParseMode reads the value of AnnotationMode; empty is auto.
func ParseMode(s string) (Mode, error) {
	return oneOf(s, ModeAuto, ModeLimiter, ModeMPS, ModeMIG, ModeExclusive)
}

// Policy is how nodes and devices are preferred.
type Policy string

const (
	// PolicyPack fills devices that are in use first.
	PolicyPack Policy = "pack"
	// PolicySpread takes the emptiest device first.
	PolicySpread Policy = "spread"
)

// ParsePolicy reads the value of AnnotationPolicy; empty is pack.
func ParsePolicy(s string) (Policy, error) { return oneOf(s, PolicyPack, PolicySpread) }

// Burst is what a pod's containers may use of a device beyond their quota.
type Burst string

const (
	// BurstNone keeps them to their quota.
	BurstNone Burst = "none"
	// BurstIdle lets them use time that nobody else on the device wants.
	BurstIdle Burst = "idle"
)

// ParseBurst reads the value of AnnotationBurst; empty is none.
func ParseBurst(s string) (Burst, error) { return oneOf(s, BurstNone, BurstIdle) }

// SameGPURequired is the one value of AnnotationSameGPU.
const SameGPURequired = "required"

// ParseSameGPU reads the value of AnnotationSameGPU: whether all slices of the pod have to
// be on one device. Empty is no.
func ParseSameGPU(s string) (bool, error) { return isSet(s, SameGPURequired) }

// isSet reads an annotation that has one value.
func isSet(s, value string) (bool, error) {
	if s != "" && s != value {
		return false, fmt.Errorf("%q is unknown: use %s, or remove the annotation", s, value)
	}
	return s == value, nil
}

// QoS is what a pod's containers do to their neighbours' host side.
type QoS string

const (
	// QoSGuaranteed leaves them what Kubernetes gives them.
	QoSGuaranteed QoS = "guaranteed"
	// QoSBurstable does the same. Where the node's compute is over-committed, a part of the quota is
	// guaranteed, and the rest is had while nobody else wants it.
	QoSBurstable QoS = "burstable"
	// QoSOpportunistic has them yield the node's processors and memory to others.
	QoSOpportunistic QoS = "opportunistic"
)

// ParseQoS reads the value of AnnotationQoS; empty is guaranteed.
func ParseQoS(s string) (QoS, error) { return oneOf(s, QoSGuaranteed, QoSBurstable, QoSOpportunistic) }

// AdviceUse is what becomes of advice.
type AdviceUse string

const (
	// AdviceShow shows it.
	AdviceShow AdviceUse = "show"
	// AdviceOff makes none.
	AdviceOff AdviceUse = "off"
	// AdviceInitial starts new pods with the advised amounts too.
	AdviceInitial AdviceUse = "initial"
)

// ParseReservedFor reads the value of AnnotationReservedFor, as the UID of a Workload; empty for none.
func ParseReservedFor(s string) (types.UID, error) {
	if len(s) > 64 || strings.ContainsFunc(s, func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}) {
		return "", errors.New("is not the UID of a Workload of Kueue's, as in its metadata.uid: remove it, Kueue writes it")
	}
	return types.UID(s), nil
}

// ParseAdvice reads the value of AnnotationAdvice. Empty stays empty: of a pod it is what its namespace
// says, of a namespace show.
func ParseAdvice(s string) (AdviceUse, error) {
	if s == "" {
		return "", nil
	}
	return oneOf(s, AdviceShow, AdviceOff, AdviceInitial)
}

// oneOf reads one of several values; empty is the first.
func oneOf[T ~string](s string, values ...T) (T, error) {
	if s == "" {
		return values[0], nil
	}
	if slices.Contains(values, T(s)) {
		return T(s), nil
	}
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	last := len(names) - 1
	return "", fmt.Errorf("%q is unknown: use %s or %s", s, strings.Join(names[:last], ", "), names[last])
}

// AllowList restricts a pod to some devices: by model (AnnotationGPUModel) or by
// UUID (AnnotationGPUUUID). The zero value allows everything.
// +kubebuilder:object:generate=false
type AllowList struct {
	only, not []allowItem
}

// allowItem is an item as it was written, and its words: a list is compared with every
// device of the cluster, so it is split once, when it is parsed.
type allowItem struct {
	text  string
	words []string
}

// ParseAllowList reads a comma-separated list in which `!` negates an item. It takes
// MaxAllowListItems items at most, repeated ones included: pods are read often.
func ParseAllowList(s string) (AllowList, error) {
	var l AllowList
	if s == "" {
		return l, nil
	}
	if len(s) > MaxAnnotationBytes {
		return l, fmt.Errorf("has %d bytes, %d are allowed: name fewer devices, or use a word that several of them share", len(s), MaxAnnotationBytes)
	}
	if strings.Count(s, ",") >= MaxAllowListItems {
		return l, fmt.Errorf("has more than %d items: name fewer devices, or use a word that several of them share", MaxAllowListItems)
	}
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		name, negated := strings.CutPrefix(item, "!")
		name = strings.TrimSpace(name)
		into := &l.only
		if negated {
			into = &l.not
		}
		parsed := allowItem{text: name, words: words(name)}
		switch {
		case len(parsed.words) == 0:
			return AllowList{}, fmt.Errorf("%q has an empty item: write names separated by commas", s)
		case strings.HasPrefix(name, "!"):
			return AllowList{}, fmt.Errorf("%q negates an item twice: one ! is enough", s)
		case slices.ContainsFunc(*into, func(had allowItem) bool { return slices.Equal(had.words, parsed.words) }):
			continue
		}
		*into = append(*into, parsed)
	}
	return l, nil
}

// Allows reports whether a device of that name (model or UUID) may be used. An
// item matches when its words appear one after the other in the name, whatever
// their case: "A100" matches "NVIDIA A100-SXM4-80GB" and "A10" does not.
func (l AllowList) Allows(name string) bool {
	if !l.Any() {
		return true
	}
	have := words(name)
	matches := func(item allowItem) bool { return containsWords(have, item.words) }
	return !slices.ContainsFunc(l.not, matches) && (len(l.only) == 0 || slices.ContainsFunc(l.only, matches))
}

// String is the list as ParseAllowList reads it.
func (l AllowList) String() string {
	items := make([]string, 0, len(l.only)+len(l.not))
	for _, item := range l.only {
		items = append(items, item.text)
	}
	for _, item := range l.not {
		items = append(items, "!"+item.text)
	}
	return strings.Join(items, ",")
}

// Only is the items that are not negated, as they were written.
func (l AllowList) Only() []string {
	items := make([]string, 0, len(l.only))
	for _, item := range l.only {
		items = append(items, item.text)
	}
	return items
}

// Any reports whether the list restricts anything.
func (l AllowList) Any() bool { return len(l.only)+len(l.not) > 0 }

// ModelsText names the models that there are for people, by how many GPUs are of each: most
// first, and maxModelsText at most.
func ModelsText(counts map[string]int) string {
	models := slices.Collect(maps.Keys(counts))
	slices.SortFunc(models, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, model := range models {
		models[i] = fmt.Sprintf("%d x %s", counts[model], model)
	}
	return "there are " + NamesText(models, maxModelsText)
}

const maxModelsText = 8

func words(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return r == ' ' || r == '-' || r == '_' || r == '/'
	})
}

func containsWords(have, want []string) bool {
	for i := 0; i+len(want) <= len(have); i++ {
		if slices.Equal(have[i:i+len(want)], want) {
			return true
		}
	}
	return false
}
