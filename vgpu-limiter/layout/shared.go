// SPDX-License-Identifier: Apache-2.0

package layout

import "encoding/binary"

// addUnowned adds to the devices' figures what live processes use, or descriptors
// keep, of memory whose maker has freed it or ended: it is charged to no process any
// more.
func addUnowned(b []byte, u *Usage) {
	le := binary.LittleEndian
	holders := map[uint64]bool{}
	for _, p := range u.Processes {
		state := le.Uint64(b[slotsOff+p.Slot*slotSize+slotStateOff:])
		holders[uint64(p.Slot+1)<<48|state&bytesMask] = true
	}
	for i := range maxExports {
		e := b[exportsOff+i*exportSize:][:exportSize]
		what, owner := le.Uint64(e[exportWhatOff:]), le.Uint64(e[exportOwnOff:])
		device := int(what >> 48 & 0xf)
		if le.Uint64(e) == 0 || device >= len(u.Devices) || holders[owner] {
			continue
		}
		used := owner&exportKept != 0
		for j := range maxImporters {
			used = used || holders[le.Uint64(e[exportImpOff+8*j:])]
		}
		if used {
			u.Devices[device].UsedBytes += what & bytesMask
		}
	}
}
