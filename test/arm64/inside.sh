#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# inside.sh QEMU COMMAND...: runs a command in a user namespace of its own, in which the
# kernel runs arm64's programs by QEMU. Outside of it nothing is registered.
set -euo pipefail
qemu=$1
shift
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
# The head of an executable file for arm64, and which of its bits count. F: opened here.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":qemu-aarch64:M::$magic:$mask:$qemu:F" >/proc/sys/fs/binfmt_misc/register
# The simulated driver reserves what addresses there are, of which QEMU keeps account page by
# page: 64 GiB of them, and no more than the machine has memory for.
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_RESERVED_VA=0x1000000000
ulimit -v 100000000
exec "$@"
