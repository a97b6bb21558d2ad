// SPDX-License-Identifier: Apache-2.0

// Package agent owns how the parts of the node agent are put together and
// started: caches first, then everything else, the runtime's connection among
// it. It decides nothing itself, and does not link NVML: that comes in by
// Options.Open.
package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/capacity"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/metrics"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/nri-plugin/mode/limiter"
	"vernier.dev/vernier/nri-plugin/mode/mig"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/nri-plugin/preload"
	"vernier.dev/vernier/nri-plugin/rdma"
	"vernier.dev/vernier/nri-plugin/release"
	"vernier.dev/vernier/nri-plugin/usage"
	"vernier.dev/vernier/nri-plugin/worker"
)

// migFile in the state directory says which MIG instances are ours; mpsFolder has the
// MPS daemons' files, in a folder that is no pod's; usageFile is the node's account.
const (
	migFile   = "mig.json"
	mpsFolder = "lib/mps"
	usageFile = "usage.json"
)

// syncTimeout bounds the wait for the first state of the caches. Past it the
// process ends and is started again, with the reason in its log.
const syncTimeout = time.Minute

// firstLook bounds the wait for NVML before the runtime is connected.
const firstLook = 10 * time.Second

// Options of an agent.
type Options struct {
	// Node is the name of the node.
	Node string
	// Config reaches the API server.
	Config *rest.Config
	// NRISocket is the runtime's.
	NRISocket string
	// StateDir holds the limiter's files; it has the same path for the runtime.
	StateDir string
	// LimiterLibrary is the libvgpu.so to install.
	LimiterLibrary string
	// MetricsAddr and HealthAddr are addresses to listen on; "0" is not at all.
	MetricsAddr, HealthAddr string
	// Open loads NVML. Refine adds what NVML does not know to a fresh snapshot.
	Open   func() (device.Library, error)
	Refine func(*device.Snapshot)
	// DevRoot is the parent of the /dev that has the driver's device nodes.
	DevRoot string
	// EndDeviceHolders ends processes that hold a GPU's device without a slice of it.
	EndDeviceHolders bool
	// EndUnenforced ends processes that use a GPU and that no limit holds.
	EndUnenforced bool
	// ScanPeriod is device.DefaultPeriod when 0.
	ScanPeriod time.Duration
	// Leaf finds a container's own cgroup; nil where the node has no cgroup v2.
	Leaf func(pid uint32, container string) (string, error)
	// Sysfs is where the node's is mounted.
	Sysfs string
	// BindCPUs has containers that ask for one NUMA node held to the CPUs of their GPUs'.
	BindCPUs bool
	// PodCPUs are those of a pod's cgroup, by its sandbox; nil under cgroup v2.
	PodCPUs func(pid uint32, sandbox string) (cpuset.CPUSet, error)
	// Pressure is how long tasks of a container have waited for a CPU.
	Pressure func(pid uint32, container string) (time.Duration, error)
	// Processors of the node, and the percent of their time up to which
	// opportunistic containers may use what others leave.
	Processors       batch.Times
	OpportunisticCPU v1alpha1.Percent
	// IdleAfter is how long a slice is idle before the ledger says so, usage.IdleGrain at most; 0
	// never says it.
	IdleAfter time.Duration
	// RDMA is where the node's RDMA devices are.
	RDMA rdma.Host
	// LendMemory lets idle slices have memory that others were promised and do not use.
	LendMemory bool
	// ShrinkNotice is how long programs have to free memory for a smaller share.
	ShrinkNotice time.Duration
	// MPS finds what starts MPS control daemons.
	MPS func() (mps.Daemons, error)
	Log logr.Logger
}

// agent is the parts, by what they own.
type agent struct {
	options    Options
	watcher    *device.Watcher
	ledger     *ledger.Cache
	table      *attach.ContainerTable
	limiter    *limiter.Limiter
	mig        *mig.Mode
	migSwitch  *mig.Switch
	account    *usage.Account
	mps        *mps.Mode
	modes      mode.Set
	preparer   *preparer
	resizer    *resizer
	releaser   *release.Releaser
	tides      *tides
	lender     *lender
	writer     *ledger.Writer
	keeper     *capacity.Keeper
	classes    *classes.Set
	connection *hooks.Connection
	auditor    *audit.Auditor
	sampler    *audit.Sampler
	report     reporter
	// reportedDriver is the driver version of the last event; the writer's alone.
	reportedDriver string
	batch          *batch.Keeper
	// rdma is the watcher's alone.
	rdma rdma.Watch
	// unobserved has an entry when running containers are to be looked at once more.
	unobserved chan struct{}
}

// Run runs an agent until ctx ends or one of its parts fails for good. Running
// containers do not depend on it.
func Run(ctx context.Context, o Options) error {
	now := servertime.New(time.Now, servertime.SinceBoot)
	o.Config = rest.CopyConfig(o.Config)
	o.Config.Wrap(now.Wrap)
	mgr, err := newManager(o)
	if err != nil {
		return err
	}
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("setting up the API client: %w", err)
	}
	recorder, err := newRecorder(ctx, mgr, o.Node)
	if err != nil {
		return err
	}
	a, err := assemble(o, mgr, live, reporter{recorder})
	if err != nil {
		return err
	}
	a.tides.read = now.Read
	if err := a.observe(ctx, mgr); err != nil {
		return err
	}
	collector := a.collector()
	if err := registry.Registry.Register(collector); err != nil {
		return fmt.Errorf("setting up the metrics: %w", err)
	}
	defer registry.Registry.Unregister(collector)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The manager waits for its caches without a bound.
	late := time.AfterFunc(syncTimeout, func() {
		cancel(fmt.Errorf("the API server has not delivered the node's ledger within %s; check its address and the rights of service account %s", syncTimeout, v1alpha1.NodeServiceAccount))
	})
	defer late.Stop()
	for _, part := range []manager.RunnableFunc{
		a.watcher.Run, a.preparer.run, a.resizer.run, a.writer.Run, a.keeper.Run, a.auditor.Run, a.limiter.ShareTime, a.sampler.Run, a.batch.Run, a.watchMPS, a.lookNowAndThen, a.tides.run, a.lender.run,
		a.observeRunning,
		func(ctx context.Context) error {
			late.Stop()
			return a.serveRuntime(ctx, mgr.GetClient(), cancel)
		},
	} {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	err = mgr.Start(ctx)
	if errors.Is(err, device.ErrReplaced) {
		// The writer has ended with the others: nobody would know why the node takes
		// no slices until the next agent has a driver that works.
		err = errors.Join(err, a.writer.WriteLast(context.Background()))
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// serveRuntime keeps the agent connected to the runtime until ctx ends, and releases what
// ends there. fail ends the agent.
func (a *agent) serveRuntime(ctx context.Context, cached client.Reader, fail context.CancelCauseFunc) error {
	// First: the runtime must not ask before the ledger is known.
	if err := a.restore(ctx, cached); err != nil {
		return err
	}
	go func() {
		if err := a.releaser.Run(ctx); err != nil {
			fail(err)
		}
	}()
	// And rather with the devices than without; but a broken driver must not keep us from
	// guarding containers.
	wait, stop := context.WithTimeout(ctx, firstLook)
	a.watcher.AwaitFirst(wait)
	stop()
	return a.connection.Run(ctx)
}

func assemble(o Options, mgr manager.Manager, live client.Client, report reporter) (*agent, error) {
	a := &agent{
		options: o, report: report, table: &attach.ContainerTable{}, classes: &classes.Set{}, ledger: &ledger.Cache{Node: o.Node, Live: live},
		rdma: rdma.Watch{Host: o.RDMA}, unobserved: make(chan struct{}, 1),
	}
	a.watcher = &device.Watcher{
		Open: o.Open, Refine: a.refine, Period: o.ScanPeriod, Changed: a.devicesChanged,
		Log: o.Log.WithName("devices"),
	}
	if err := a.makeModes(mgr.GetClient(), live); err != nil {
		return nil, err
	}
	settle := func() error { return errors.Join(a.mig.Settle(), a.mps.Settle()) }
	a.preparer = newPreparer(a.ledger.Index, a.modes, settle, o.Log.WithName("prepare"))
	a.resizer = &resizer{
		index: a.ledger.Index, fetch: a.ledger.Fetch, table: a.table, resize: a.limiter.Resize,
		inForce: func(c mode.Container) []ledger.Grant { return a.limiter.Recall(c, nil) },
		atLeast: func(c mode.Container) []ledger.Grant { return a.modes.AtLeast(c) },
		notice:  a.limiter.Notice, grace: o.ShrinkNotice, deadlines: map[string]deadline{}, refusals: map[ledger.Key]refusal{}, now: time.Now,
		log: o.Log.WithName("resize"), queue: worker.NewQueue[struct{}](resizeRetry, maxResizeRetry),
	}
	a.writer = ledger.NewWriter(ledger.Writer{Node: o.Node, Live: live, Fill: a.fill, Cache: a.ledger, Log: o.Log.WithName("ledger")})
	a.keeper = capacity.NewKeeper(capacity.Keeper{
		Node: o.Node, Cached: mgr.GetClient(), Live: live, Counted: a.counted, Granted: a.ledger.Index, Classes: a.classes, Log: o.Log.WithName("capacity"),
	})
	a.tides = &tides{
		index: a.ledger.Index, shut: a.limiter.Shut, look: func(pod types.UID) { a.releaser.Look(pod) },
		tell: func(text string) { a.report.ledger(o.Node, reasonTideClock, "Shutting", text) },
	}
	a.lender = a.newLender()
	a.releaser = release.New(release.Releaser{
		Index: a.ledger.Index, Pods: mgr.GetClient(), Live: live, Table: a.table, IdleEnded: a.idleEnded,
		Forget: a.modes.Release, Publish: a.writer.Publish, Kill: killThen, Warn: a.report.warnOf, Now: time.Now, Log: o.Log.WithName("release"),
	})
	a.table.Changed = func(pod types.UID) {
		a.releaser.Look(pod)
		a.resizer.look()
		a.writer.Publish()
	}
	a.account = usage.New(usage.Sources{
		Node: o.Node, Path: filepath.Join(o.StateDir, usageFile), Live: live, State: a.counting,
		Table: a.table, Modes: a.modes, Workload: workloadOf(mgr.GetClient()), Use: a.use, Now: time.Now, Log: o.Log.WithName("usage"),
		Working: func(uuid string) (map[string]bool, error) { return a.sampler.Working(uuid) }, IdleAfter: o.IdleAfter, IdleChanged: a.writer.Publish,
	})
	a.table.Ended = func(c mode.Container) {
		a.account.Ended(c) // first: the counters go with the run's folder
		a.preparer.ended(c)
	}
	a.batch = &batch.Keeper{
		Times: o.Processors, Cap: batch.Cap{Share: o.OpportunisticCPU},
		Limit: cpuLimit(mgr.GetClient()), Log: o.Log.WithName("batch"),
	}
	plugin := &hooks.Plugin{
		Ledger: a.ledger, Devices: a.watcher, Modes: a.modes, Table: a.table, Batch: a.batch, RDMA: o.RDMA,
		Report: a.report, Kill: kill, Sysfs: o.Sysfs, BindCPUs: o.BindCPUs, PodCPUs: o.PodCPUs, Env: steeringEnv(mgr.GetClient()), Log: o.Log.WithName("nri"),
		Started: a.report.started, IdleEnded: a.idleEnded,
	}
	plugin.Misaligned.Changed = a.writer.Publish
	a.connection = &hooks.Connection{Socket: o.NRISocket, Changed: a.runtimeChanged, Plugin: plugin}
	a.batch.Containers, a.batch.Update = plugin.Containers.Batch, a.connection.Update
	a.auditor = &audit.Auditor{
		Devices: a.watcher, Modes: a.modes, Table: a.table, Containers: &plugin.Containers,
		Report: a.report, Proc: "/proc", DevRoot: o.DevRoot, End: o.EndDeviceHolders, EndUnenforced: o.EndUnenforced, Now: time.Now, Log: o.Log.WithName("audit"),
	}
	a.sampler = &audit.Sampler{
		Devices: a.watcher, Turns: a.limiter, Containers: &plugin.Containers, Proc: "/proc", Log: o.Log.WithName("audit"),
	}
	return a, a.addChecks(mgr)
}

// makeModes makes the ways in which slices are enforced, each with what it needs of the node.
func (a *agent) makeModes(cached, live client.Client) (err error) {
	o := a.options
	driver := &driverlimit.Limit{Devices: a.watcher, Leaf: o.Leaf}
	a.limiter, err = limiter.New(o.StateDir, o.LimiterLibrary, driver)
	if err != nil {
		return err
	}
	image := preload.New("/proc")
	a.limiter.ImagePreload = func(pid uint32) []byte { return a.imagePreload(image, pid) }
	containers := func() ([]mode.Container, bool) {
		// First: what is entered after that is known to the ledger.
		synced := a.table.Synced()
		return a.table.Containers(), synced
	}
	migNode := mig.Node{Devices: a.watcher, Index: a.ledger.Index, Containers: containers}
	a.mig, err = mig.New(filepath.Join(o.StateDir, migFile), migNode)
	if err != nil {
		return err
	}
	a.mps = mps.New(filepath.Join(o.StateDir, mpsFolder), mps.Node{
		Devices: a.watcher, Index: a.ledger.Index, Containers: containers, Find: o.MPS, Driver: driver, Root: mps.Root, Warn: a.report.warnOf,
	})
	a.migSwitch = &mig.Switch{
		Node:   migNode,
		Wanted: migWanted(o.Node, cached),
		Withdraw: func(ctx context.Context) (*v1alpha1.SliceLedger, error) {
			if err := a.writer.Write(ctx); err != nil {
				return nil, err
			}
			l := &v1alpha1.SliceLedger{}
			return l, live.Get(ctx, client.ObjectKey{Name: o.Node}, l)
		},
		Tell: func(action, message string) { a.report.ledger(o.Node, reasonMIGMode, action, message) },
	}
	a.modes = mode.Set{
		v1alpha1.ModeLimiter: a.limiter, v1alpha1.ModeMPS: a.mps, v1alpha1.ModeMIG: a.mig, v1alpha1.ModeExclusive: exclusive.Mode{},
	}
	return nil
}

// imagePreload is what a container's image preloads, as far as that can be found
// out: a runtime that mounts roots in another way must not keep containers out.
func (a *agent) imagePreload(image *preload.Image, pid uint32) []byte {
	own, err := image.Own(pid)
	if err != nil {
		a.options.Log.Error(err, "Cannot show a container its image's "+preload.Path, "process", pid)
	}
	return own
}

func (a *agent) collector() *metrics.Collector {
	return metrics.New(metrics.Sources{
		Node: a.options.Node, Table: a.table, Modes: a.modes,
		Devices: a.watcher.Snapshot, Granted: a.granted, Findings: a.auditor.Findings, Held: a.auditor.Held, Orphans: a.releaser.Ended,
		Use: a.use, Account: a.account.Sums, Activity: a.activity, Batch: a.batch.Use, Pressure: a.options.Pressure,
		NVML: a.watcher.Err, Runtime: a.connection.Err, Clock: clock.RealClock{},
	})
}

func (a *agent) granted(uuid string) (v1alpha1.Amounts, bool) {
	return a.ledger.Index().Granted(uuid), a.ledger.Known()
}

func (a *agent) use(uuid string) (device.Use, error) {
	library, err := a.watcher.Library()
	if err != nil {
		return device.Use{}, err
	}
	return library.Use(uuid)
}

func (a *agent) activity(uuid string) (device.Activity, error) {
	library, err := a.watcher.Library()
	if err != nil {
		return nil, err
	}
	return library.Activity(uuid)
}

// restore takes up what the agent had published before it was restarted: the
// pods that it will not start again, and since when slices are idle.
func (a *agent) restore(ctx context.Context, cached client.Reader) error {
	l := &v1alpha1.SliceLedger{}
	err := cached.Get(ctx, client.ObjectKey{Name: a.options.Node}, l)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading SliceLedger %s: %w", a.options.Node, err)
	}
	if err == nil {
		a.table.Restore(l.Status.Released)
		a.account.Restore(l.Status.Slices)
		a.ledger.Begin(l)
		a.account.Changed()
		a.preparer.look()
		a.keeper.Look()
	}
	return nil
}

func (a *agent) devicesChanged() {
	a.account.Changed()
	a.preparer.look()
	a.writer.Publish()
	a.keeper.Look()
	a.lookAtRunning()
}

// lookAtRunning asks for another look at the containers that run and of which it is not
// known what holds them. It never blocks: a look asks NVML, and where that hangs neither the
// connection to the runtime nor the look at the devices, which finds it out, may wait for it.
func (a *agent) lookAtRunning() {
	select {
	case a.unobserved <- struct{}{}:
	default:
	}
}

// observeRunning looks at them. What it finds is published.
func (a *agent) observeRunning(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.unobserved:
			a.connection.Plugin.Observe()
		}
	}
}

// runtimeChanged follows a connection or its loss. After one the table is whole,
// so every pod can be decided on, and what is left of earlier ones be removed.
func (a *agent) runtimeChanged(came bool) {
	a.writer.Publish()
	if !came {
		return
	}
	a.lookAtRunning()
	a.releaser.LookAll()
	if err := a.limiter.Sweep(a.table.Containers); err != nil {
		a.options.Log.Error(err, "Cannot clear the state directory")
	}
	a.preparer.look()
	pods, err := a.limiter.Pods()
	if err != nil {
		a.options.Log.Error(err, "Cannot list the state directory")
	}
	for _, pod := range pods {
		a.releaser.Look(pod)
	}
}

// refine completes a fresh picture of the devices.
func (a *agent) refine(now *device.Snapshot) {
	if a.options.Refine != nil {
		a.options.Refine(now)
	}
	a.rdma.Refine(now)
	a.mig.Mark(now)
	a.migSwitch.Mark(now)
	a.mps.Mark(now)
}

// lookNowAndThen puts devices into MIG mode where the node's label says so, and carries the
// node's account. Both can wait.
func (a *agent) lookNowAndThen(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := a.account.Look(ctx); err != nil && ctx.Err() == nil {
			a.options.Log.WithName("usage").Error(err, "Cannot keep the node's account; it is tried again")
		}
		if err := a.migSwitch.Look(ctx, time.Now()); err != nil {
			a.options.Log.WithName("mig").Error(err, "Cannot put a device into MIG mode; it is tried again")
		}
	}, mig.SwitchPeriod)
	return nil
}

// watchMPS looks after the MPS servers. What it fails to put right, the preparer
// tries again.
func (a *agent) watchMPS(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) {
		if err := a.mps.Look(time.Now()); err != nil {
			a.options.Log.WithName("mps").Error(err, "A server is not as it should be")
			a.preparer.look()
		}
	}, mps.Period)
	return nil
}

// counting is what the node's account counts by.
func (a *agent) counting() (device.Snapshot, *ledger.Index, bool) {
	now, scanned := a.watcher.Snapshot()
	return now, a.ledger.Index(), scanned && a.ledger.Known()
}

func (a *agent) counted() ([]v1alpha1.DeviceStatus, bool) {
	now, scanned := a.watcher.Snapshot()
	return capacity.Counted(&now, a.ledger.Index()), scanned && a.ledger.Known()
}
