// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 owns the vernier.dev API: its resources, the two
// documents in pod annotations, and every resource name, annotation
// key, label and gate. It is the only place where one of those is spelled.
//
// It never talks to a cluster, reads a clock or decides anything. It holds
// types, their arithmetic, and the parsing of what crosses a process boundary.
//
// +kubebuilder:object:generate=true
// +groupName=vernier.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion is the group and version of every type of this package.
var SchemeGroupVersion = schema.GroupVersion{Group: Group, Version: Version}

// AddToScheme registers the types of this package.
var AddToScheme = builder.AddToScheme

var builder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(SchemeGroupVersion, &SliceLedger{}, &SliceLedgerList{}, &GPUClass{}, &GPUClassList{}, &SliceUsage{}, &SliceUsageList{}, &SliceAdvice{}, &SliceAdviceList{}, &Tide{}, &TideList{})
	metav1.AddToGroupVersion(s, SchemeGroupVersion)
	return nil
})
