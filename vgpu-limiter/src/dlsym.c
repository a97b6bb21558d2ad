// SPDX-License-Identifier: Apache-2.0
//
// dlsym and dlvsym: a lookup of an intercepted function finds ours.
//
// Invariants:
//   1. Every other lookup is a jump into the real dlsym with the caller's own
//      return address, which the real one needs: RTLD_NEXT and RTLD_DEFAULT mean
//      "as seen from the object that called".
//   2. A lookup that would have failed without the library fails with it, though
//      the library exports a function of that name. The exception: with RTLD_DEFAULT
//      and RTLD_NEXT a function of the table is found as soon as the driver is
//      loaded, wherever. Which objects the caller sees beside the global ones only
//      the real dlsym knows, and it finds the library before them.
//   3. A function of that name in an object that stands before the library, the
//      program's own or another preloaded library's, is found as without it, but not by
//      a version of it.
//
// Programs ask for dlsym@GLIBC_2.2.5 (on arm64 GLIBC_2.17) or, built on glibc 2.34 and
// later, dlsym@GLIBC_2.34; the unversioned symbol here satisfies all.

#include "hooks.h"
#include "runtime/object.h"

#include <dlfcn.h>
#include <stddef.h>

struct lookup {
    void *address;
    long done; // 0: jump to the real function
};

// Where the jumps go; used by the assembler text.
void *vgpu_real_dlsym __attribute__((visibility("hidden")));
void *vgpu_real_dlvsym __attribute__((visibility("hidden")));
struct lookup vgpu_dlsym(void *handle, const char *name, const char *unused, const void *caller);
struct lookup vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller);

static void *find_nothing(void) { return NULL; }

// Before glibc 2.34 the functions are in libdl, which may have been loaded later.
static void *find_real(const char *name) {
    struct vgpu_object object;
    void *found = NULL;
    if (vgpu_object_first_named("libc.so.6", &object))
        found = vgpu_object_function(&object, name);
    if (found == NULL && vgpu_object_named("libdl.so.2", &object))
        found = vgpu_object_function(&object, name);
    return found != NULL ? found : (void *)find_nothing;
}

// The real lookup, called from this object.
static void *real_lookup(void *handle, const char *name, const char *version) {
    if (version != NULL)
        return ((void *(*)(void *, const char *, const char *))vgpu_real_dlvsym)(handle, name, version);
    return ((void *(*)(void *, const char *))vgpu_real_dlsym)(handle, name);
}

static struct lookup look_up(void *handle, const char *name, const char *version, const void *caller) {
    // Racing threads store the same value.
    if (__atomic_load_n(&vgpu_real_dlvsym, __ATOMIC_ACQUIRE) == NULL) {
        __atomic_store_n(&vgpu_real_dlsym, find_real("dlsym"), __ATOMIC_RELEASE);
        __atomic_store_n(&vgpu_real_dlvsym, find_real("dlvsym"), __ATOMIC_RELEASE);
    }
    if (name == NULL || (name[0] != 'c' && name[0] != 'n' && name[0] != 'd'))
        return (struct lookup){0};
    if (vgpu_same_text(name, "dlsym"))
        return (struct lookup){(void *)dlsym, 1};
    if (vgpu_same_text(name, "dlvsym"))
        return (struct lookup){(void *)dlvsym, 1};
    void *ours;
    bool driver_has_it;
    if (!vgpu_intercepts(name, &ours, &driver_has_it))
        return (struct lookup){0};
    void *found = NULL;
    if (handle != RTLD_DEFAULT && handle != RTLD_NEXT) {
        found = real_lookup(handle, name, version);
        if (found != ours)
            return (struct lookup){vgpu_stand_in(name, found), 1};
    } else if (version == NULL &&
               (found = vgpu_object_before(ours, handle == RTLD_NEXT ? caller : NULL, name)) != NULL) {
        return (struct lookup){vgpu_stand_in(name, found), 1};
    }
    // A search through the global scope comes to us before the driver.
    if (driver_has_it)
        return (struct lookup){ours, 1};
    return (struct lookup){real_lookup(RTLD_NEXT, name, version), 1};
}

struct lookup vgpu_dlsym(void *handle, const char *name, const char *unused, const void *caller) {
    (void)unused;
    return look_up(handle, name, NULL, caller);
}

struct lookup vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller) {
    return look_up(handle, name, version, caller);
}

#if defined(__x86_64__)
// Three pushes keep the arguments and leave the stack aligned for the call. Above them
// lies the caller's address.
#define JUMP_UNLESS_DONE(symbol, decide, real)      \
    __asm__(".text\n"                               \
            ".globl " symbol "\n"                   \
            ".type " symbol ", @function\n"         \
            symbol ":\n"                            \
            "    .cfi_startproc\n"                  \
            "    endbr64\n"                         \
            "    push %rdi\n"                       \
            "    .cfi_adjust_cfa_offset 8\n"        \
            "    push %rsi\n"                       \
            "    .cfi_adjust_cfa_offset 8\n"        \
            "    push %rdx\n"                       \
            "    .cfi_adjust_cfa_offset 8\n"        \
            "    mov 24(%rsp), %rcx\n"              \
            "    call " decide "\n"                 \
            "    mov %rdx, %rcx\n"                  \
            "    pop %rdx\n"                        \
            "    .cfi_adjust_cfa_offset -8\n"       \
            "    pop %rsi\n"                        \
            "    .cfi_adjust_cfa_offset -8\n"       \
            "    pop %rdi\n"                        \
            "    .cfi_adjust_cfa_offset -8\n"       \
            "    test %rcx, %rcx\n"                 \
            "    jne 1f\n"                          \
            "    jmp *" real "(%rip)\n"             \
            "1:  ret\n"                             \
            "    .cfi_endproc\n"                    \
            ".size " symbol ", .-" symbol "\n")
#elif defined(__aarch64__)
// The link register is the caller's address, and has it again before the jump.
#define JUMP_UNLESS_DONE(symbol, decide, real)      \
    __asm__(".text\n"                               \
            ".globl " symbol "\n"                   \
            ".type " symbol ", %function\n"         \
            symbol ":\n"                            \
            "    .cfi_startproc\n"                  \
            "    hint #34\n" /* bti c */            \
            "    stp x29, x30, [sp, #-48]!\n"       \
            "    .cfi_def_cfa_offset 48\n"          \
            "    .cfi_offset 29, -48\n"             \
            "    .cfi_offset 30, -40\n"             \
            "    mov x29, sp\n"                     \
            "    stp x0, x1, [sp, #16]\n"           \
            "    str x2, [sp, #32]\n"               \
            "    mov x3, x30\n"                     \
            "    bl " decide "\n"                   \
            "    mov x16, x1\n"                     \
            "    cbnz x16, 1f\n"                    \
            "    ldp x0, x1, [sp, #16]\n"           \
            "    ldr x2, [sp, #32]\n"               \
            "1:  ldp x29, x30, [sp], #48\n"         \
            "    .cfi_def_cfa_offset 0\n"           \
            "    .cfi_restore 29\n"                 \
            "    .cfi_restore 30\n"                 \
            "    cbnz x16, 2f\n"                    \
            "    adrp x16, " real "\n"              \
            "    ldr x16, [x16, :lo12:" real "]\n"  \
            "    br x16\n"                          \
            "2:  ret\n"                             \
            "    .cfi_endproc\n"                    \
            ".size " symbol ", .-" symbol "\n")
#else
#error "the jumps are written for x86-64 and arm64 only"
#endif

JUMP_UNLESS_DONE("dlsym", "vgpu_dlsym", "vgpu_real_dlsym");
JUMP_UNLESS_DONE("dlvsym", "vgpu_dlvsym", "vgpu_real_dlvsym");
