// SPDX-License-Identifier: Apache-2.0
//
// unload: keeps a function of a library that it has closed, as a program does
// that closes what another part of it has opened, and calls it.

#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == NULL)
        return 1;
    int (*call)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    dlclose(library);
    printf("%d\n", call(NULL, NULL));
    return 0;
}
