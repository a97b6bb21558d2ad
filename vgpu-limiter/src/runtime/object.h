// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_OBJECT_H
#define VGPU_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

// A loaded object, as its own dynamic section describes it. The pointers point
// into the object and are good as long as it stays loaded.
struct vgpu_object {
    uintptr_t base;
    const char *path; // as the loader knows it
    const char *strings;
    const ElfW(Sym) *symbols;
    const uint32_t *gnu_hash, *sysv_hash;
    const char *soname; // NULL where it has none
};

// strcmp, which isn't always there (object.c).
static inline bool vgpu_same_text(const char *a, const char *b) {
    while (*a != 0 && *a == *b)
        a++, b++;
    return *a == *b;
}

// Finds the first loaded object of this soname.
bool vgpu_object_named(const char *soname, struct vgpu_object *out);

// The same, for an object that the program was started with: without the loader's
// lock, which keeps what is loaded later from being unloaded.
bool vgpu_object_first_named(const char *soname, struct vgpu_object *out);

// Finds the loaded object that holds this address.
bool vgpu_object_at(const void *address, struct vgpu_object *out);

// Returns the address of a function that the object defines, whatever its
// symbol version, or NULL.
void *vgpu_object_function(const struct vgpu_object *object, const char *name);

// The first function of this name in the objects that stand before the one with
// `address` in the loader's list, which is the order in which it searches them; only
// in those after the one with `after`, if that isn't NULL. NULL if there is none.
void *vgpu_object_before(const void *address, const void *after, const char *name);

#endif
