// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// resizeLook is the pause between looks at a pod that is being resized.
const resizeLook = 200 * time.Millisecond

// resizer is the flags of resize.
type resizer struct {
	*command
	pod, container string
	core, mem      string
	timeout        time.Duration
	to             v1alpha1.ResizeTo
}

func (c *command) resizeCommand() *cobra.Command {
	o := &resizer{command: c}
	cmd := c.sub("resize POD", "Change the share of a running container", nil)
	cmd.Long = `Give a running container other amounts of each of its GPUs, without a restart, and wait
until they are in force. A share grows up to what the container's limits ask for. It is
not made smaller than the memory that is in use.

It writes the pod's annotation ` + v1alpha1.AnnotationResize + `, and reads its condition
` + string(v1alpha1.PodConditionResize) + `.`
	cmd.Example = `  kubectl vernier resize train-0 --core 20 --mem-mib 4000
  kubectl vernier resize train-0 -c main --core 60`
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New("name one pod")
		}
		o.pod = strings.TrimPrefix(args[0], "pod/")
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.parse(); err != nil {
			return err
		}
		api, err := c.session()
		if err != nil {
			return err
		}
		return o.resize(cmd.Context(), api)
	}
	f := cmd.Flags()
	f.StringVarP(&o.container, "container", "c", "", "the container; needed where several of the pod have a share")
	f.StringVar(&o.core, "core", "", "percent of each GPU's compute")
	f.StringVar(&o.mem, "mem-mib", "", "MiB of each GPU's memory")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait; 0 does not")
	c.propose(cmd, 1, func(ctx context.Context, r client.Reader) (names []string, err error) {
		all, err := ledgers(ctx, r)
		for i := range all {
			for _, d := range all[i].Spec.Devices {
				for _, s := range d.Slices {
					if namespace, name, _ := strings.Cut(s.Owner, "/"); namespace == c.ns {
						names = append(names, name)
					}
				}
			}
		}
		slices.Sort(names)
		return slices.Compact(names), err
	})
	return cmd
}

func (o *resizer) parse() (err error) {
	o.to = v1alpha1.ResizeTo{}
	if o.core != "" {
		if o.to.Core, err = v1alpha1.ParsePercent(o.core); err != nil {
			return fmt.Errorf("--core: %w", err)
		}
	}
	if o.mem != "" {
		if o.to.MemMiB, err = v1alpha1.ParseMiB(o.mem); err != nil {
			return fmt.Errorf("--mem-mib: %w", err)
		}
	}
	if o.to == (v1alpha1.ResizeTo{}) {
		return errors.New("say --core, --mem-mib or both")
	}
	return nil
}

func (o *resizer) resize(ctx context.Context, api client.Client) error {
	if o.ns == "" {
		return errors.New("resize is about one pod: say its namespace with -n instead of -A")
	}
	pod := &corev1.Pod{}
	read := func() error {
		if err := api.Get(ctx, client.ObjectKey{Namespace: o.ns, Name: o.pod}, pod); err != nil {
			return fmt.Errorf("reading pod %s/%s: %w", o.ns, o.pod, err)
		}
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	to, err := o.document(pod)
	if err != nil {
		return err
	}
	text := to.String()
	if is := resizing.ConditionOf(pod); is != nil && is.Reason == resizing.ReasonInfeasible && strings.HasPrefix(is.Message, text+": ") {
		// The same again is another try: the annotation goes, and with it that answer.
		if err := o.annotate(ctx, api, pod, nil); err != nil {
			return err
		}
		if err := o.await(read, func() bool { return resizing.ConditionOf(pod).Reason != resizing.ReasonInfeasible }); err != nil {
			return err
		}
	}
	if err := o.annotate(ctx, api, pod, to); err != nil || o.timeout == 0 {
		return err
	}
	var is *corev1.PodCondition
	err = o.await(read, func() bool {
		is = resizing.ConditionOf(pod)
		return is != nil && (is.Reason == resizing.ReasonDone && is.Message == text || is.Reason == resizing.ReasonInfeasible && strings.HasPrefix(is.Message, text+": "))
	})
	switch {
	case err != nil && is != nil:
		return fmt.Errorf("%w: %s: %s", err, is.Reason, is.Message)
	case err != nil:
		return err
	case is.Reason == resizing.ReasonInfeasible:
		return fmt.Errorf("%s: %s", is.Reason, is.Message)
	}
	_, err = fmt.Fprintf(o.out, "pod %s/%s: %s: in force\n", o.ns, o.pod, text)
	return err
}

// document is what the pod asks for already, with the new amounts.
func (o *resizer) document(pod *corev1.Pod) (v1alpha1.Resize, error) {
	shares := podrequest.SharesOf(pod)
	names := slices.Sorted(maps.Keys(shares))
	ctr := o.container
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("pod %s/%s has no share", o.ns, o.pod)
	case ctr == "" && len(names) > 1:
		return nil, fmt.Errorf("containers %s have a share: say which with -c", v1alpha1.NamesText(names, len(names)))
	case ctr == "":
		ctr = names[0]
	}
	to, err := podrequest.ResizeOf(pod)
	if err != nil || to == nil {
		to = v1alpha1.Resize{}
	}
	to = maps.Clone(to)
	to[ctr] = o.to
	return to, to.Known(shares)
}

func (o *resizer) annotate(ctx context.Context, api client.Client, pod *corev1.Pod, to v1alpha1.Resize) error {
	var value any
	if to != nil {
		text, err := json.Marshal(to)
		if err != nil {
			return err
		}
		value = string(text)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{v1alpha1.AnnotationResize: value}}})
	if err != nil {
		return err
	}
	if err := api.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("resizing pod %s/%s: %w", o.ns, o.pod, err)
	}
	return nil
}

// await reads the pod until that is so, or the timeout is over.
func (o *resizer) await(read func() error, is func() bool) error {
	for until := o.now().Add(o.timeout); ; {
		if err := read(); err != nil {
			return err
		}
		if is() {
			return nil
		}
		if !o.now().Before(until) {
			return fmt.Errorf("pod %s/%s: not resized after %s", o.ns, o.pod, o.timeout)
		}
		<-o.after(resizeLook)
	}
}
