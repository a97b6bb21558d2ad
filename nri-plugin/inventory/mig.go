// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// Instances are what the device is cut into, in the order of their places.
func (inv *Inventory) Instances(uuid string) ([]v1alpha1.MIGInstance, error) {
	u, err := inv.cut(uuid)
	if err != nil {
		return nil, err
	}
	profiles, err := inv.profiles(u)
	if err != nil {
		return nil, err
	}
	return inv.instances(u, profiles)
}

// CreateInstance makes an instance with one compute instance over all of it. It finishes one that
// an earlier call began.
func (inv *Inventory) CreateInstance(uuid string, at v1alpha1.MIGPlace) error {
	u, err := inv.cut(uuid)
	if err != nil {
		return err
	}
	gi, found, err := inv.find(u, at)
	if err != nil {
		return err
	}
	if !found {
		var r nvml.Return
		gi, r = u.handle.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: uint32(at.Profile)},
			&nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		if r != nvml.SUCCESS {
			return fmt.Errorf("making a GPU instance of profile %d at %d: %w", at.Profile, at.Start, r)
		}
	}
	whole, made, err := inv.compute(gi, at.Profile)
	if err != nil || made != 0 {
		return err
	}
	if _, r := gi.CreateComputeInstance(&whole); r != nvml.SUCCESS {
		return fmt.Errorf("making the compute instance of profile %d at %d: %w", at.Profile, at.Start, r)
	}
	return nil
}

// DestroyInstance destroys an instance, its compute instances first. One that is
// not there is no error.
func (inv *Inventory) DestroyInstance(uuid string, at v1alpha1.MIGPlace) error {
	u, err := inv.cut(uuid)
	if err != nil {
		return err
	}
	gi, found, err := inv.find(u, at)
	if err != nil || !found {
		return err
	}
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, r := gi.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if r != nvml.SUCCESS {
			continue
		}
		all, r := gi.GetComputeInstances(&info)
		if r != nvml.SUCCESS {
			return fmt.Errorf("listing compute instances: %w", r)
		}
		for _, ci := range all {
			if r := ci.Destroy(); r != nvml.SUCCESS {
				return fmt.Errorf("destroying the compute instance of profile %d at %d: %w", at.Profile, at.Start, r)
			}
		}
	}
	if r := gi.Destroy(); r != nvml.SUCCESS {
		return fmt.Errorf("destroying the GPU instance of profile %d at %d: %w", at.Profile, at.Start, r)
	}
	return nil
}

// cut is a device that instances can be made on.
func (inv *Inventory) cut(uuid string) (*unit, error) {
	if !inv.symbols[symbolPlacements] || !inv.symbols[symbolPlace] {
		return nil, fmt.Errorf("%w: driver %s can't place MIG instances; they come with R470", device.ErrUnsupported, inv.driver.Version)
	}
	return inv.unit(uuid)
}

// layout is what a device in MIG mode can be cut into, and what it is cut into.
// Without the first nothing is placed there.
func (inv *Inventory) layout(d *v1alpha1.DeviceStatus) {
	u, err := inv.cut(d.UUID)
	if err == nil {
		d.Profiles, err = inv.profiles(u)
	}
	if err == nil {
		d.Instances, err = inv.instances(u, d.Profiles)
	}
	if err == nil {
		inv.ail(u, d.Instances)
	}
	if err != nil {
		d.Profiles, d.Instances = nil, nil
		if d.Healthy {
			d.Reason = "it takes no slices while MIG is on: " + err.Error()
		}
	}
}

// profiles are the kinds of instances of a device in MIG mode. They never change,
// and are asked for once.
func (inv *Inventory) profiles(u *unit) ([]v1alpha1.MIGProfile, error) {
	inv.mu.Lock()
	known := u.profiles
	inv.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var infos []nvml.GpuInstanceProfileInfo
	var whole uint32
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		if info, r := u.handle.GetGpuInstanceProfileInfo(number); r == nvml.SUCCESS {
			infos, whole = append(infos, info), max(whole, info.SliceCount)
		}
	}
	var profiles []v1alpha1.MIGProfile
	for _, info := range infos {
		places, r := u.handle.GetGpuInstancePossiblePlacements(&info)
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("the places of profile %d: %w", info.Id, r)
		}
		p := v1alpha1.MIGProfile{
			ID: int32(info.Id), Mem: v1alpha1.MiB(info.MemorySizeMB), Max: int32(info.InstanceCount),
			Core: v1alpha1.WholeGPU * v1alpha1.Percent(info.SliceCount) / v1alpha1.Percent(whole),
		}
		for _, place := range places {
			if place.Size > 0 && place.Start+place.Size <= v1alpha1.MIGSlices {
				p.Size, p.Starts = int32(place.Size), append(p.Starts, int32(place.Start))
			}
		}
		if len(p.Starts) > 0 {
			profiles = append(profiles, p)
		}
	}
	inv.mu.Lock()
	u.profiles = profiles
	inv.mu.Unlock()
	return profiles, nil
}

func (inv *Inventory) instances(u *unit, profiles []v1alpha1.MIGProfile) ([]v1alpha1.MIGInstance, error) {
	names, err := inv.names(u)
	if err != nil {
		return nil, err
	}
	var all []v1alpha1.MIGInstance
	for i := range profiles {
		p := &profiles[i]
		gis, r := u.handle.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: uint32(p.Max)})
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("listing instances of profile %d: %w", p.ID, r)
		}
		for _, gi := range gis {
			info, r := gi.GetInfo()
			if r == nvml.ERROR_NOT_FOUND || r == nvml.ERROR_INVALID_ARGUMENT {
				continue // gone by now
			}
			if r != nvml.SUCCESS {
				return nil, fmt.Errorf("reading an instance of profile %d: %w", p.ID, r)
			}
			instance := v1alpha1.MIGInstance{MIGPlace: p.Place(int32(info.Placement.Start))}
			// Two names are two parts of it.
			if own := names[int(info.Id)]; len(own) == 1 {
				if _, made, err := inv.compute(gi, p.ID); err == nil && made == 1 {
					instance.UUID = own[0]
				}
			}
			all = append(all, instance)
		}
	}
	slices.SortFunc(all, func(a, b v1alpha1.MIGInstance) int { return int(a.Start - b.Start) })
	return all, nil
}

// names are the UUIDs of MIG devices by the id of their GPU instance.
func (inv *Inventory) names(u *unit) (map[int][]string, error) {
	n, r := u.handle.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("counting MIG devices: %w", r)
	}
	names := map[int][]string{}
	for i := range n {
		mig, r := u.handle.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue
		}
		gi, r := mig.GetGpuInstanceId()
		if r != nvml.SUCCESS {
			continue
		}
		if uuid, r := mig.GetUUID(); r == nvml.SUCCESS {
			names[gi] = append(names[gi], uuid)
		}
	}
	return names, nil
}

// find is the GPU instance at a place.
func (inv *Inventory) find(u *unit, at v1alpha1.MIGPlace) (gi nvml.GpuInstance, found bool, err error) {
	all, r := u.handle.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(at.Profile), InstanceCount: v1alpha1.MIGSlices})
	if r != nvml.SUCCESS {
		return nil, false, fmt.Errorf("listing instances of profile %d: %w", at.Profile, r)
	}
	for _, gi := range all {
		if info, r := gi.GetInfo(); r == nvml.SUCCESS && int32(info.Placement.Start) == at.Start {
			return gi, true, nil
		}
	}
	return nil, false, nil
}

// compute is the compute profile over all of a GPU instance, and how many compute
// instances of it there are: 0 or 1.
func (inv *Inventory) compute(gi nvml.GpuInstance, profile int32) (whole nvml.ComputeInstanceProfileInfo, made int, err error) {
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, r := gi.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if r == nvml.SUCCESS && info.SliceCount > whole.SliceCount {
			whole = info
		}
	}
	if whole.SliceCount == 0 {
		return whole, 0, fmt.Errorf("profile %d has no compute profile: %w", profile, device.ErrUnsupported)
	}
	all, r := gi.GetComputeInstances(&whole)
	if r != nvml.SUCCESS {
		return whole, 0, fmt.Errorf("listing compute instances of profile %d: %w", profile, r)
	}
	return whole, len(all), nil
}
