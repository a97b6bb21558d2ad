// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/api/access"
	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/capacity"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/mode"
)

// newManager watches this node's ledger, this node and this node's pods, and of
// the pods keeps only what release decides on, and their CPU limits.
func newManager(o Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	// What client-go would allow, five requests a second of a kind, the slices of a hundred
	// pods that end together would wait 20 s for. The API server has its own fairness.
	config := rest.CopyConfig(o.Config)
	config.QPS = -1
	mgr, err := manager.New(config, manager.Options{
		Scheme:                  scheme,
		Logger:                  o.Log,
		Metrics:                 access.Metrics(o.MetricsAddr),
		HealthProbeBindAddress:  o.HealthAddr,
		GracefulShutdownTimeout: ptr.To(5 * time.Second),
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.SliceLedger{}: {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Node)},
			&corev1.Node{}:          {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Node)},
			&corev1.Pod{}: {
				Field:     fields.OneTermEqualSelector("spec.nodeName", o.Node),
				Transform: slimPod,
			},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the API caches: %w", err)
	}
	return mgr, nil
}

func slimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	annotations := inVain(pod)
	if podrequest.WishesOf(pod.Annotations).Advice == v1alpha1.AdviceOff {
		annotations = map[string]string{annotationUnadvised: ""}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Annotations: annotations,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			OwnerReferences: controller(pod), Labels: templateHash(pod),
		},
		Spec:   slimSpec(&pod.Spec),
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

// controller is the owner reference of what made the pod, and templateHash the label by which a
// ReplicaSet's name is read: advice.Workload needs no more.
func controller(pod *corev1.Pod) []metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return []metav1.OwnerReference{{Kind: owner.Kind, Name: owner.Name, Controller: owner.Controller}}
	}
	return nil
}

func templateHash(pod *corev1.Pod) map[string]string {
	if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
		return map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: hash}
	}
	return nil
}

// annotationUnadvised is on our own copy of a pod that wants no advice.
const annotationUnadvised = v1alpha1.Prefix + "unadvised"

// workloadOf looks up what made a container's pod; empty too where it wants no advice.
func workloadOf(pods client.Reader) func(mode.Container) string {
	return func(c mode.Container) string {
		namespace, name, _ := strings.Cut(c.Owner, "/")
		pod := &corev1.Pod{}
		if err := pods.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil || pod.UID != c.Pod {
			return ""
		}
		if _, off := pod.Annotations[annotationUnadvised]; off {
			return ""
		}
		return advice.Workload(&pod.ObjectMeta)
	}
}

// observe follows the classes, and hands every other change that the watches deliver to the
// part that it concerns. The handlers only take note; the work is done by the parts.
func (a *agent) observe(ctx context.Context, mgr manager.Manager) error {
	if err := a.classes.Follow(ctx, mgr.GetCache(), a.keeper.Look); err != nil {
		return err
	}
	for object, handle := range map[client.Object]func(object any, gone bool){
		&v1alpha1.SliceLedger{}: a.ledgerChanged,
		&corev1.Node{}:          func(any, bool) { a.keeper.Look() },
		&corev1.Pod{}:           a.podChanged,
	} {
		informer, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w; see that Vernier's CRDs are installed and the rights of service account %s", object, err, v1alpha1.NodeServiceAccount)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(now any) {
				tellStatic(now, a.report)
				handle(now, false)
			},
			UpdateFunc: func(_, now any) { handle(now, false) },
			DeleteFunc: func(last any) {
				if unknown, ok := last.(toolscache.DeletedFinalStateUnknown); ok {
					last = unknown.Obj
				}
				handle(last, true)
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) ledgerChanged(object any, gone bool) {
	l, ok := object.(*v1alpha1.SliceLedger)
	if !ok {
		return
	}
	if gone {
		l = nil
	}
	before, now := a.ledger.Set(l)
	if before.UID == now.UID && before.Generation == now.Generation {
		return
	}
	a.account.Changed()
	a.preparer.look()
	a.resizer.look()
	a.writer.Publish()
	a.keeper.Look()
	for _, pod := range before.Pods() {
		a.releaser.Look(pod)
	}
	a.releaser.LookAll()
}

// podChanged leaves out the pods without slices here, which are most: of one that had some
// the ledger, the table and the state directory tell. A look at it would ask the driver, the
// MPS daemons and the API server.
func (a *agent) podChanged(object any, _ bool) {
	if pod, ok := object.(*corev1.Pod); ok {
		if _, holds := a.ledger.Index().Owner(pod.UID); holds || a.table.Holds(pod.UID) {
			a.releaser.Look(pod.UID)
		}
		if capacity.AsksForUnits(pod) {
			a.keeper.Look()
		}
	}
}

// migWanted reads the node's label, as the watch has delivered it.
func migWanted(node string, cached client.Reader) func() bool {
	return func() bool {
		n := &corev1.Node{}
		err := cached.Get(context.Background(), client.ObjectKey{Name: node}, n)
		return err == nil && n.Labels[v1alpha1.LabelMIGMode] == v1alpha1.LabelMIGModeEnabled
	}
}

// addChecks says by HTTP whether the agent is alive, and whether it is ready.
func (a *agent) addChecks(mgr manager.Manager) error {
	return errors.Join(
		mgr.AddHealthzCheck("alive", healthz.Ping),
		mgr.AddReadyzCheck("ready", func(*http.Request) error {
			return errors.Join(a.watcher.Err(), a.connection.Err())
		}),
	)
}

// reporter writes events.
type reporter struct{ events.EventRecorder }

// warnOf writes a warning about a container's pod.
func (r reporter) warnOf(c mode.Container, reason, message string) {
	namespace, name, _ := strings.Cut(c.Owner, "/")
	r.Warn(hooks.PodRef{Namespace: namespace, Name: name, UID: c.Pod, Container: c.Name}, reason, "container "+c.Name+": "+message)
}

// Warn writes a warning about a pod's container, which it names as the kubelet does. Warnings of two
// containers for one reason are two events, and not the first one's twice. The
// recorder queues it.
func (r reporter) Warn(pod hooks.PodRef, reason, message string) {
	r.emit(pod, corev1.EventTypeWarning, reason, message)
}

// started writes what a container has, once for all of its restarts within some minutes.
func (r reporter) started(pod hooks.PodRef, what string) {
	r.emit(pod, corev1.EventTypeNormal, hooks.ReasonInForce, "container "+pod.Container+" has "+what)
}

func (r reporter) emit(pod hooks.PodRef, kind, reason, message string) {
	r.Eventf(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		FieldPath: "spec.containers{" + pod.Container + "}",
	}, nil, kind, reason, "Enforcing", "%s", message)
}

// ledger writes an event about the node's ledger. Events of what has no namespace go
// to the default one. Those of one reason and action within some minutes are one event to
// Kubernetes, with the first's message.
func (r reporter) ledger(node, reason, action, message string) {
	r.Eventf(&v1alpha1.SliceLedger{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "SliceLedger"},
		ObjectMeta: metav1.ObjectMeta{Name: node},
	}, nil, corev1.EventTypeNormal, reason, action, "%s", message)
}

const (
	// reasonStatic: a static pod asks for a share, in vain.
	reasonStatic = "StaticPodWithShare"
	// annotationInVain is on our own copy of such a pod: the container that asks.
	annotationInVain = v1alpha1.Prefix + "asks-in-vain"
)

// inVain marks a static pod that asks for a share, and has nothing for others. The kubelet
// starts such a pod from a manifest on the node, without asking anybody: there is no grant,
// and its containers see no GPU. The runtime hears of no requests, so the pod that the
// kubelet shows the API server for it tells.
func inVain(pod *corev1.Pod) map[string]string {
	own, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if !static {
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(v1alpha1.Asked(c.Resources.Requests)) > 0 {
			return map[string]string{annotationInVain: c.Name, corev1.MirrorPodAnnotationKey: own}
		}
	}
	return nil
}

// tellStatic tells of a static pod that asks in vain. The event is of the UID that the pod has
// on its node, as the kubelet's own are: kubectl describe looks for that.
func tellStatic(object any, report hooks.Reporter) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Annotations[annotationInVain] == "" {
		return
	}
	container := pod.Annotations[annotationInVain]
	own := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
	report.Warn(hooks.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: own, Container: container}, reasonStatic,
		"container "+container+" asks for a share, and a static pod gets none: it sees no GPU. Take the request out of the manifest on the node, or run it in a DaemonSet or a Deployment")
}

// newRecorder makes a recorder of events that name this node as reportingInstance: an
// admission policy lets the node's token write no others. It records until ctx ends.
func newRecorder(ctx context.Context, mgr manager.Manager, node string) (events.EventRecorder, error) {
	client, err := eventsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("setting up events: %w", err)
	}
	broadcaster := events.NewBroadcaster(nodeSink{&events.EventSinkImpl{Interface: client}, reportingInstance(node)})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("setting up events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return broadcaster.NewRecorder(mgr.GetScheme(), v1alpha1.NodeServiceAccount), nil
}

// maxInstance is how many bytes the API server takes as an event's reportingInstance.
const maxInstance = 128

// reportingInstance is the node's name, as far as it fits. The admission policy
// vernier-node-events cuts it likewise.
func reportingInstance(node string) string { return node[:min(len(node), maxInstance)] }

// nodeSink writes events under a reportingInstance of its own; client-go's recorder takes the
// hostname, which is the pod's.
type nodeSink struct {
	events.EventSink
	instance string
}

func (s nodeSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	own := e.DeepCopy()
	own.ReportingInstance = s.instance
	return renamed(e)(s.EventSink.Create(ctx, own))
}

func (s nodeSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	own := e.DeepCopy()
	own.ReportingInstance = s.instance
	return renamed(e)(s.EventSink.Update(ctx, own))
}

// Patch needs no change of the patch, which is of the series only.
func (s nodeSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return renamed(e)(s.EventSink.Patch(ctx, e, patch))
}

// renamed gives the server's answer the recorder's own reportingInstance, by which it finds
// repeated events again.
func renamed(e *eventsv1.Event) func(*eventsv1.Event, error) (*eventsv1.Event, error) {
	return func(answer *eventsv1.Event, err error) (*eventsv1.Event, error) {
		if answer != nil {
			answer = answer.DeepCopy()
			answer.ReportingInstance = e.ReportingInstance
		}
		return answer, err
	}
}
