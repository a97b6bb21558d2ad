// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
)

// settled is how long a device must be free of critical events, with nothing
// asked of the operator by the driver, before it counts as recovered.
const settled = 30 * time.Second

// critical are the events that a device's health depends on.
const critical = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// harmless are Xids that a faulty program causes on a sound device: the program
// ends, its neighbours and the device do not. They are those that NVIDIA's
// documentation calls user application faults.
var harmless = map[uint64]bool{
	13:  true, // graphics engine exception
	31:  true, // GPU memory page fault
	43:  true, // GPU stopped processing
	45:  true, // preemptive cleanup
	68:  true, // video processor exception
	109: true, // context switch timeout
}

// offTheBus is the Xid of a lost device. It leaves no mark: the loss shows itself
// for as long as it lasts.
const offTheBus = 79

// whole is the id of an instance in an event of the device itself.
const whole = 0xffffffff

// mark is the last critical event of a device, or of an instance of it.
type mark struct {
	device string
	reason string
	at     time.Time
}

// watch subscribes to the device's critical events, as far as it has them.
func (inv *Inventory) watch(handle nvml.Device) {
	if inv.events == nil {
		return
	}
	if supported, r := handle.GetSupportedEventTypes(); r == nvml.SUCCESS && supported&critical != 0 {
		handle.RegisterEvents(supported&critical, inv.events)
	}
}

// WaitEvent waits for a critical event and marks its device, or the instance that it
// is of. An event that names no device marks them all.
func (inv *Inventory) WaitEvent(timeout time.Duration) bool {
	if inv.events == nil {
		time.Sleep(timeout)
		return false
	}
	begun := time.Now()
	event, r := inv.events.Wait(uint32(timeout.Milliseconds()))
	if r == nvml.ERROR_TIMEOUT {
		return false
	}
	if r != nvml.SUCCESS {
		// The set is of no use while the driver is in trouble, which the next
		// scan shows; don't spin.
		time.Sleep(timeout - min(timeout, time.Since(begun)))
		return r == nvml.ERROR_GPU_IS_LOST
	}
	reason := fmt.Sprintf("event %#x", event.EventType)
	switch event.EventType {
	case nvml.EventTypeXidCriticalError:
		if harmless[event.EventData] {
			return false
		}
		if event.EventData == offTheBus {
			return true
		}
		reason = fmt.Sprintf("Xid %d", event.EventData)
	case nvml.EventTypeDoubleBitEccError:
		reason = "uncorrectable ECC error"
	}
	inv.mark(event, reason)
	return true
}

// mark marks what an event is of: an instance where it names one that there is, else
// the device, and all devices where it names none.
func (inv *Inventory) mark(event nvml.EventData, reason string) {
	uuid, r := event.Device.GetUUID()
	inv.mu.Lock()
	units := slices.Clone(inv.units)
	inv.mu.Unlock()
	var marked []mark
	var names []string
	for _, u := range units {
		if r == nvml.SUCCESS && u.fixed.UUID != uuid {
			continue
		}
		of := []string{u.fixed.UUID}
		if event.GpuInstanceId != whole && inv.mig(u) == v1alpha1.MIGEnabled {
			if all, err := inv.names(u); err == nil && len(all[int(event.GpuInstanceId)]) > 0 {
				of = all[int(event.GpuInstanceId)]
			}
		}
		for _, name := range of {
			names, marked = append(names, name), append(marked, mark{device: u.fixed.UUID, reason: reason, at: inv.now()})
		}
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for i, name := range names {
		inv.marks[name] = marked[i]
	}
}

// illness is why a device must not carry slices now, empty when it may.
func (inv *Inventory) illness(u *unit) string {
	memory, r := u.handle.GetMemoryInfo()
	switch {
	case r == nvml.ERROR_GPU_IS_LOST:
		inv.unmark(u) // it comes back reset, or not at all
		return "the GPU has fallen off the bus"
	case r != nvml.SUCCESS:
		return "the GPU does not answer: " + r.Error()
	case memory.Total == 0:
		return "the GPU has no memory"
	}
	action, knows := inv.recovery(u.handle)
	if knows && action != nvml.GPU_RECOVERY_ACTION_NONE {
		return "the driver asks for recovery: " + actions[action]
	}
	// Only a driver that knows recovery can take a device's illness back; with an
	// older one it takes a reset, which needs the device free of us as well.
	return inv.lasting(u.fixed.UUID, knows, "; reset the GPU with vernier-node stopped on this node")
}

// lasting is what the mark of a device or an instance says for as long as it lasts.
func (inv *Inventory) lasting(name string, knows bool, remedy string) string {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	m, marked := inv.marks[name]
	switch {
	case !marked:
		return ""
	case !knows:
		return m.reason + remedy
	case inv.now().Sub(m.at) < settled:
		return m.reason
	}
	delete(inv.marks, name)
	return ""
}

// ail gives the instances of a device their illnesses. An instance that is made
// again is another one, and healthy.
func (inv *Inventory) ail(u *unit, all []v1alpha1.MIGInstance) {
	_, knows := inv.recovery(u.handle)
	for i := range all {
		all[i].Reason = inv.lasting(all[i].UUID, knows, "; it is healthy again once it is made again")
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	maps.DeleteFunc(inv.marks, func(name string, m mark) bool {
		return m.device == u.fixed.UUID && name != m.device && !slices.ContainsFunc(all, func(i v1alpha1.MIGInstance) bool { return i.UUID == name })
	})
}

func (inv *Inventory) unmark(u *unit) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	maps.DeleteFunc(inv.marks, func(_ string, m mark) bool { return m.device == u.fixed.UUID })
}

var actions = map[nvml.DeviceGpuRecoveryAction]string{
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           "reset the GPU",
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         "reboot the node",
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           "drain peer-to-peer traffic",
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     "drain and reset the GPU",
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover the IMEX domain",
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           "reset the GPU's bus",
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       "reboot the system",
}

// recovery is what the driver asks the operator to do; knows is false for a
// driver or a device that has no such word.
func (inv *Inventory) recovery(handle nvml.Device) (action nvml.DeviceGpuRecoveryAction, knows bool) {
	if !inv.symbols[symbolFields] {
		return 0, false
	}
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if r := handle.GetFieldValues(field); r != nvml.SUCCESS || nvml.Return(field[0].NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(field[0].Value[:])), true
}
