// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// chosen gives a command -l, which is of the labels of nodes or of pods.
func (c *command) chosen(cmd *cobra.Command, of string) *cobra.Command {
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "label selector, such as a=b,c!=d, on the labels of "+of)
	return cmd
}

// ordered gives a command --sort-by.
func (c *command) ordered(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&c.sortBy, "sort-by", "", "field of the JSON form of an item to sort by, such as .memMiB.granted")
	return cmd
}

// ofNodes makes a command of nodes take names of some.
func (c *command) ofNodes(cmd *cobra.Command) *cobra.Command {
	cmd.Use += " [NODE...]"
	cmd.Args = func(_ *cobra.Command, names []string) error {
		if len(names) > 0 && c.selector != "" {
			return errors.New("name nodes or choose them with -l, not both")
		}
		c.names = names
		return nil
	}
	c.propose(cmd, math.MaxInt, func(ctx context.Context, r client.Reader) (names []string, err error) {
		all, err := ledgers(ctx, r)
		for i := range all {
			names = append(names, all[i].Name)
		}
		return names, err
	})
	return c.chosen(cmd, "nodes")
}

// nodeLedgers are the ledgers of the nodes that are named or chosen by -l, or else of all.
func (c *command) nodeLedgers(ctx context.Context, r client.Reader) ([]v1alpha1.SliceLedger, error) {
	var found []v1alpha1.SliceLedger
	for _, name := range c.names {
		l := v1alpha1.SliceLedger{}
		if err := r.Get(ctx, client.ObjectKey{Name: name}, &l); client.IgnoreNotFound(err) != nil {
			return nil, explain(err, "sliceledgers."+v1alpha1.Group, "")
		} else if err != nil {
			return nil, fmt.Errorf("%w: `kubectl vernier nodes` lists the nodes that have one", err)
		}
		found = append(found, l)
	}
	if len(c.names) > 0 {
		return found, nil
	}
	all, err := ledgers(ctx, r)
	if err != nil || c.selector == "" {
		return all, err
	}
	nodes, err := labelled(ctx, r, "Node", "", c.selector)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(l v1alpha1.SliceLedger) bool { return !nodes[types.NamespacedName{Name: l.Name}] }), nil
}

// ofPods are the items whose pods -l chooses.
func ofPods[T any](ctx context.Context, c *command, r client.Reader, items []T, pod func(T) types.NamespacedName) ([]T, error) {
	if c.selector == "" {
		return items, nil
	}
	pods, err := labelled(ctx, r, "Pod", c.ns, c.selector)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(items, func(item T) bool { return !pods[pod(item)] }), nil
}

// labelled are the names of the objects that a label selector chooses.
func labelled(ctx context.Context, r client.Reader, kind, ns, selector string) (map[types.NamespacedName]bool, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind + "List"}}
	if err := r.List(ctx, list, client.InNamespace(ns), client.MatchingLabelsSelector{Selector: parsed}); err != nil {
		return nil, fmt.Errorf("choosing by labels: %w", err)
	}
	found := map[types.NamespacedName]bool{}
	for i := range list.Items {
		found[client.ObjectKeyFromObject(&list.Items[i])] = true
	}
	return found, nil
}
