// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

func TestEventsReachTheSetThatRegistered(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 2}}})
	lib := open(t, s)
	d := device(t, lib, 1)
	set, ret := lib.EventSetCreate()
	ok(t, ret)
	defer set.Free()
	must.Do(t, s.Xid("1", 13)) // before the registration: not delivered
	ok(t, d.RegisterEvents(nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError, set))
	want(t, d.RegisterEvents(nvml.EventTypeClock, set), nvml.ERROR_NOT_SUPPORTED)
	_, ret = set.Wait(0)
	want(t, ret, nvml.ERROR_TIMEOUT)

	// The wait sleeps until the event comes; no time-out could save a missed wake.
	type result struct {
		data nvml.EventData
		ret  nvml.Return
	}
	got := make(chan result)
	go func() {
		data, ret := set.Wait(600000)
		got <- result{data, ret}
	}()
	must.Do(t, s.Xid("0", 48)) // the other device: not delivered
	must.Do(t, s.Xid("1", 79))
	r := <-got
	ok(t, r.ret)
	if r.data.EventType != nvml.EventTypeXidCriticalError || r.data.EventData != 79 {
		t.Errorf("event %+v", r.data)
	}
	if index, _ := r.data.Device.GetIndex(); index != 1 {
		t.Errorf("event of device %d", index)
	}
	must.Do(t, s.ECC("1", false, 2))
	for _, expected := range []uint64{nvml.EventTypeDoubleBitEccError, nvml.EventTypeXidCriticalError} {
		data := value(set.Wait(600000))(t)
		if data.EventType != expected {
			t.Errorf("event type %#x, want %#x", data.EventType, expected)
		}
	}
	count := value(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))(t)
	if count != 2 {
		t.Errorf("%d uncorrected errors", count)
	}
}

func TestLostDevice(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 2}}})
	lib := open(t, s)
	d := device(t, lib, 0)
	uuid, ret := d.GetUUID()
	ok(t, ret)
	must.Do(t, s.Lose(uuid))
	_, ret = d.GetMemoryInfo()
	want(t, ret, nvml.ERROR_GPU_IS_LOST)
	_, ret = lib.DeviceGetHandleByUUID(uuid)
	want(t, ret, nvml.ERROR_GPU_IS_LOST)
	count, ret := lib.DeviceGetCount()
	ok(t, ret)
	if count != 2 { // it keeps its index
		t.Errorf("count %d", count)
	}
	if lines := run(t, s, "cudademo"); len(lines) != 1 {
		t.Errorf("CUDA still sees the lost device: %q", lines)
	}
	must.Do(t, s.Recover(uuid))
	_, ret = d.GetMemoryInfo()
	ok(t, ret)
}

func TestReplaced(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 2}}})
	lib := open(t, s)
	d := device(t, lib, 1)
	before := value(d.GetUUID())(t)
	must.Do(t, s.Lose("1"))
	must.Do(t, s.Replace(before))
	after := value(d.GetUUID())(t)
	other := value(device(t, lib, 0).GetUUID())(t)
	if after == before || after == other {
		t.Errorf("UUID %s after %s, beside %s", after, before, other)
	}
}

// A library beside another version of the kernel module says so at every call.
func TestModuleOfAnotherVersion(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	lib := open(t, s)
	d := device(t, lib, 0)
	must.Do(t, s.Module("616.1"))
	_, ret := d.GetUUID()
	want(t, ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	_, ret = lib.DeviceGetCount()
	want(t, ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	must.Do(t, s.Module(DriverNewest))
	_, ret = d.GetUUID()
	ok(t, ret)
}
