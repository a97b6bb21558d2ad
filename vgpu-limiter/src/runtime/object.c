// SPDX-License-Identifier: Apache-2.0
//
// Finds functions in loaded objects without dlsym, which is one of the functions
// that the library stands in for: it walks the loader's list of objects and
// reads their hash tables.
//
// Invariants:
//   1. Nothing here allocates, locks anything of ours, or calls a function that the
//      library intercepts.
//   2. What the first lookup of a process needs calls nothing outside of this file: a
//      sanitizer's runtime looks up what it stands in for before its own functions of
//      these names can be called, strcmp and dl_iterate_phdr among them.

#include "runtime/object.h"

#include <stddef.h>

struct search {
    const char *soname;  // looked for, or NULL
    uintptr_t address;   // looked for, if soname is NULL
    struct vgpu_object *out;
};

// The loader has relocated the pointers of most objects' dynamic sections in
// place, but not of all.
static const void *pointer(uintptr_t base, ElfW(Addr) value) {
    return (const void *)(value < base ? base + value : value);
}

static bool read_dynamic(uintptr_t base, const char *path, const ElfW(Dyn) *dynamic, struct vgpu_object *out) {
    if (dynamic == NULL)
        return false;
    *out = (struct vgpu_object){.base = base, .path = path};
    ElfW(Xword) soname = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const void *at = pointer(out->base, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_STRTAB:
            out->strings = at;
            break;
        case DT_SYMTAB:
            out->symbols = at;
            break;
        case DT_GNU_HASH:
            out->gnu_hash = at;
            break;
        case DT_HASH:
            out->sysv_hash = at;
            break;
        case DT_SONAME:
            soname = dynamic->d_un.d_val;
            break;
        }
    }
    if (out->strings == NULL || out->symbols == NULL)
        return false;
    out->soname = soname != 0 ? out->strings + soname : NULL;
    return true;
}

static bool read_object(const struct dl_phdr_info *info, struct vgpu_object *out) {
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return read_dynamic(info->dlpi_addr, info->dlpi_name, dynamic, out);
}

static bool contains(const struct dl_phdr_info *info, uintptr_t address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && address - info->dlpi_addr - segment->p_vaddr < segment->p_memsz)
            return true;
    }
    return false;
}

static bool is_named(const struct vgpu_object *object, const char *soname) {
    return object->soname != NULL && vgpu_same_text(object->soname, soname);
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    if (search->soname == NULL)
        return contains(info, search->address) && read_object(info, search->out);
    return read_object(info, search->out) && is_named(search->out, search->soname);
}

bool vgpu_object_named(const char *soname, struct vgpu_object *out) {
    struct search search = {.soname = soname, .out = out};
    return dl_iterate_phdr(visit, &search) != 0;
}

bool vgpu_object_at(const void *address, struct vgpu_object *out) {
    struct search search = {.address = (uintptr_t)address, .out = out};
    return dl_iterate_phdr(visit, &search) != 0;
}

// The loader's own list, which debuggers read. Weak: the loader isn't linked with, and
// is always there.
extern struct r_debug _r_debug __attribute__((weak));

bool vgpu_object_first_named(const char *soname, struct vgpu_object *out) {
    const struct link_map *map = &_r_debug != NULL ? _r_debug.r_map : NULL;
    for (; map != NULL; map = map->l_next)
        if (read_dynamic(map->l_addr, map->l_name, map->l_ld, out) && is_named(out, soname))
            return true;
    return false;
}

struct before {
    uintptr_t address, after; // where to end and, unless 0, where to begin
    const char *name;
    void *found;
};

static int visit_before(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct before *before = data;
    struct vgpu_object object;
    if (contains(info, before->address))
        return 1;
    if (before->after != 0) {
        if (contains(info, before->after))
            before->after = 0;
    } else if (read_object(info, &object)) {
        before->found = vgpu_object_function(&object, before->name);
    }
    return before->found != NULL;
}

void *vgpu_object_before(const void *address, const void *after, const char *name) {
    struct before before = {(uintptr_t)address, (uintptr_t)after, name, NULL};
    dl_iterate_phdr(visit_before, &before);
    return before.found;
}

static bool is_function(const struct vgpu_object *object, const ElfW(Sym) *symbol,
                        const char *name) {
    return symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
           vgpu_same_text(object->strings + symbol->st_name, name);
}

static const ElfW(Sym) *gnu_lookup(const struct vgpu_object *object, const char *name) {
    const uint32_t *table = object->gnu_hash;
    uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381;
    for (const char *c = name; *c != 0; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t i = buckets != 0 ? bucket[hash % buckets] : 0;
    if (i < first)
        return NULL;
    for (;; i++) {
        uint32_t entry = chain[i - first];
        if ((entry | 1) == (hash | 1) && is_function(object, &object->symbols[i], name))
            return &object->symbols[i];
        if ((entry & 1) != 0)
            return NULL;
    }
}

static const ElfW(Sym) *sysv_lookup(const struct vgpu_object *object, const char *name) {
    const uint32_t *table = object->sysv_hash;
    uint32_t buckets = table[0];
    const uint32_t *bucket = table + 2, *chain = bucket + buckets;
    uint32_t hash = 0;
    for (const char *c = name; *c != 0; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ ((hash & 0xf0000000) >> 24)) & 0x0fffffff;
    }
    for (uint32_t i = buckets != 0 ? bucket[hash % buckets] : 0; i != 0; i = chain[i])
        if (is_function(object, &object->symbols[i], name))
            return &object->symbols[i];
    return NULL;
}

void *vgpu_object_function(const struct vgpu_object *object, const char *name) {
    const ElfW(Sym) *symbol = NULL;
    if (object->gnu_hash != NULL)
        symbol = gnu_lookup(object, name);
    else if (object->sysv_hash != NULL)
        symbol = sysv_lookup(object, name);
    return symbol != NULL ? (void *)(object->base + symbol->st_value) : NULL;
}
