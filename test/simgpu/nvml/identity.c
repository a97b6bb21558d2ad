// SPDX-License-Identifier: Apache-2.0
//
// identity.c: model, board and PCI facts, which never change.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

FACT(nvmlDeviceGetBrand, nvmlBrandType_t, find, (nvmlBrandType_t)t.m->brand)
FACT(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, find, t.m->arch)
FACT(nvmlDeviceGetNumGpuCores, unsigned int, find, t.m->sms * t.m->cores_per_sm)
FACT(nvmlDeviceGetBoardId, unsigned int, find, t.d->domain << 16 | t.d->bus << 8)
FACT(nvmlDeviceGetModuleId, unsigned int, find_gpu, t.d->minor + 1)
FACT(nvmlDeviceGetMinorNumber, unsigned int, find, t.d->minor)
FACT(nvmlDeviceGetMultiGpuBoard, unsigned int, find, 0)
FACT(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, find, NVML_GPU_VIRTUALIZATION_MODE_NONE)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct target t;
    NEED(major && minor);
    CHECK(find(device, &t));
    *major = (int)t.m->major;
    *minor = (int)t.m->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    struct target t;
    char text[NVML_DEVICE_SERIAL_BUFFER_SIZE];
    CHECK(find(device, &t));
    snprintf(text, sizeof text, "1%03u%03u%06u", t.d->uuid[0] % 1000, t.d->uuid[1] % 1000,
             (unsigned)(t.d->uuid[2] << 8 | t.d->uuid[3]));
    return copy_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part, unsigned int length) {
    struct target t;
    CHECK(find(device, &t));
    return copy_text(part, length, t.m->part);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    struct target t;
    char text[NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE];
    CHECK(find(device, &t));
    snprintf(text, sizeof text, "%02X.00.9F.00.01", t.m->pci_device >> 24);
    return copy_text(version, length, text);
}

void fill_place(unsigned domain, unsigned bus, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", domain & 0xffff, bus & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", domain, bus & 0xff);
    pci->domain = domain;
    pci->bus = bus;
}

void fill_pci(const struct sim_device *d, nvmlPciInfo_t *pci) {
    const struct sim_model *m = sim_model(d->model);
    fill_place(d->domain, d->bus, pci);
    pci->pciDeviceId = m ? m->pci_device : 0;
    pci->pciSubSystemId = m ? m->pci_subsystem : 0;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct target t;
    NEED(pci);
    CHECK(find(device, &t));
    fill_pci(t.d, pci);
    return NVML_SUCCESS;
}

// The first versions' structure is the third's without its last member; v1 also
// lacks the subsystem id.
static nvmlReturn_t older_pci(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size) {
    nvmlPciInfo_t full;
    NEED(pci);
    CHECK(nvmlDeviceGetPciInfo_v3(device, &full));
    memcpy(pci, &full, size);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return older_pci(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return older_pci(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci) {
    struct target t;
    NEED(pci);
    CHECK(find(device, &t));
    if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci->domain = t.d->domain;
    pci->bus = t.d->bus;
    pci->device = 0;
    pci->pciDeviceId = t.m->pci_device;
    pci->pciSubSystemId = t.m->pci_subsystem;
    pci->baseClass = 0x03;
    pci->subClass = 0x02;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", t.d->domain, t.d->bus & 0xff);
    return NVML_SUCCESS;
}
