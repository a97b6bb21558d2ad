// SPDX-License-Identifier: Apache-2.0

package layout

import "encoding/binary"

// addOrphans adds to the devices' figures what live processes use of memory
// that other processes made and shared, and that these have freed or taken to
// their graves: it is charged to no process any more.
func addOrphans(b []byte, u *Usage) {
	le := binary.LittleEndian
	holders := map[uint64]bool{}
	for _, p := range u.Processes {
		state := le.Uint64(b[slotsOff+p.Slot*slotSize+slotStateOff:])
		holders[uint64(p.Slot+1)<<48|state&bytesMask] = true
	}
	for i := range maxExports {
		e := b[exportsOff+i*exportSize:][:exportSize]
		what := le.Uint64(e[exportWhatOff:])
		device := int(what >> 48)
		if le.Uint64(e) == 0 || device >= len(u.Devices) || holders[le.Uint64(e[exportOwnOff:])] {
			continue
		}
		for j := range maxImporters {
			if holders[le.Uint64(e[exportImpOff+8*j:])] {
				u.Devices[device].UsedBytes += what & bytesMask
				break
			}
		}
	}
}
