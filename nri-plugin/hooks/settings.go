// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/util/version"
)

// What the runtime must be and be told, each with the remedy that an operator
// reads in the ledger.
const (
	nriOff = "set disable = false and disable_connections = false in [plugins.'io.containerd.nri.v1.nri'] of " +
		"containerd's configuration and restart containerd; where socket_path there names another socket, set --nri-socket to it"
	tooOld = "its NRI has no default validator, so containers with slices would start without limits while vernier-node is away; " +
		"update containerd to 2.2 or newer"
)

// oldest is the first containerd with a default validator.
var oldest = version.MustParseGeneric("2.2")

// unreachable says what is missing where the runtime's socket cannot be dialed.
func unreachable(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist: containerd runs without NRI, or not at all: %s", socket, nriOff)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at %s: containerd is stopped, or was started again without NRI: %s", socket, nriOff)
	}
	return fmt.Errorf("%w: see that containerd runs with NRI: %s", err, nriOff)
}

// supported refuses a containerd without a default validator. A version that
// cannot be read, as of a build from source, is believed to be new: what it lacks
// then, the first creation of a container shows.
func supported(runtime, says string) error {
	if v, err := version.ParseGeneric(says); runtime == "containerd" && err == nil && v.LessThan(oldest) {
		return fmt.Errorf("%s %s: %s", runtime, says, tooOld)
	}
	return nil
}

// Configure is the runtime's first word. No event is named: all that the plugin
// handles are meant.
func (h *handler) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	err := supported(runtime, version)
	if err != nil {
		h.refusal.Store(&err)
	}
	return 0, err
}
