// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// target is a device by the words of the command line.
type target struct{ node, gpu string }

// parseTarget reads NODE/GPU.
func parseTarget(arg string) (target, error) {
	// As messages and -o name call it.
	if named, is := strings.CutPrefix(arg, "gpu/"); is && strings.Contains(named, "/") {
		arg = named
	}
	node, gpu, cut := strings.Cut(arg, "/")
	if !cut || node == "" || gpu == "" || strings.Contains(gpu, "/") {
		return target{}, fmt.Errorf("%q names no device: write NODE/GPU, the GPU by its index or UUID as `kubectl vernier devices -o wide` shows them", arg)
	}
	return target{node, gpu}, nil
}

// find reads the target's ledger and finds the device in it: by its index, by its
// UUID or by what a UUID begins with. Devices that the node does not see any more,
// and of which the ledger knows, are found by UUID.
func (t target) find(ctx context.Context, c client.Reader) (l *v1alpha1.SliceLedger, uuid string, err error) {
	l = &v1alpha1.SliceLedger{}
	if err := c.Get(ctx, client.ObjectKey{Name: t.node}, l); apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("node %s has no ledger: `kubectl vernier nodes` lists those that have", t.node)
	} else if err != nil {
		return nil, "", explain(err, "sliceledgers."+v1alpha1.Group, "")
	}
	if index, err := strconv.ParseInt(t.gpu, 10, 32); err == nil {
		for _, d := range l.Status.Devices {
			if int64(d.Index) == index {
				return l, d.UUID, nil
			}
		}
		return nil, "", fmt.Errorf("node %s has no GPU %d: `kubectl vernier devices` lists what it has", t.node, index)
	}
	known := map[string]bool{}
	for _, d := range l.Status.Devices {
		known[d.UUID] = true
	}
	for _, d := range l.Spec.Devices {
		known[d.UUID] = true
	}
	for _, d := range l.Spec.Cordons {
		known[d.UUID] = true
	}
	if known[t.gpu] {
		return l, t.gpu, nil
	}
	for one := range known {
		if !strings.HasPrefix(one, t.gpu) {
			continue
		}
		if uuid != "" {
			return nil, "", fmt.Errorf("the UUIDs of several GPUs of node %s begin with %q: write more of it", t.node, t.gpu)
		}
		uuid = one
	}
	if uuid == "" {
		return nil, "", fmt.Errorf("node %s has no GPU %q: `kubectl vernier devices -o wide` lists what it has", t.node, t.gpu)
	}
	return l, uuid, nil
}

// dryRunNotes are what kubectl writes behind what it did not do.
var dryRunNotes = map[cmdutil.DryRunStrategy]string{cmdutil.DryRunClient: " (dry run)", cmdutil.DryRunServer: " (server dry run)"}

var errNoDevice = errors.New("name at least one device as NODE/GPU")
