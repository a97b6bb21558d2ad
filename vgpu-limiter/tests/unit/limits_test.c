// SPDX-License-Identifier: Apache-2.0
//
// limits_test COUNTERS LIMITS: the parser takes the file that the Go package has
// written, and nothing that differs from it by a bit or by its length. Then it is
// fed noise under a right checksum: whatever it accepts keeps to the rules.
//
// limits_test judge: says of each file's content on standard input, one after the
// other, whether it is taken.

#include "check.h"
#include "runtime/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vgpu_test_step(void) {}

static void seal(struct vgpu_limits *limits) {
    limits->checksum = 0;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof *limits; i++)
        hash = (hash ^ ((unsigned char *)limits)[i]) * UINT64_C(0x100000001b3);
    limits->checksum = hash;
}

static int judge(void) {
    // Memory of its own, so that a sanitizer sees what is read beyond it.
    struct vgpu_limits *content = malloc(sizeof *content), got;
    while (content != NULL && fread(content, sizeof *content, 1, stdin) == 1)
        putchar(vgpu_limits_parse(content, sizeof *content, &got) == NULL ? '+' : '-');
    free(content);
    return 0;
}

int main(int argc, char **argv) {
    struct vgpu_limits good, got;
    if (argc == 2 && strcmp(argv[1], "judge") == 0)
        return judge();
    CHECK(argc >= 3);
    CHECK(vgpu_limits_read(argv[2], &good) == NULL);
    CHECK(good.device_count == 1 && good.device[0].memory_bytes == 5);
    CHECK(good.device[0].core_percent == 30 && strcmp(good.container, "a/b") == 0);
    CHECK(good.device[0].uuid[0] == 0x00 && good.device[0].uuid[15] == 0xff);
    CHECK(vgpu_limits_read(argv[1], &got) != NULL);
    CHECK(vgpu_limits_read("/", &got) != NULL);
    CHECK(vgpu_limits_read("no such file", &got) != NULL);
    for (size_t n = 0; n < sizeof good; n++)
        CHECK(vgpu_limits_parse(&good, n, &got) != NULL);
    for (size_t bit = 0; bit < sizeof good * 8; bit++) {
        struct vgpu_limits bad = good;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        CHECK(vgpu_limits_parse(&bad, sizeof bad, &got) != NULL);
    }
    uint64_t random = 1;
    int accepted = 0;
    for (int i = 0; i < 200000; i++) {
        struct vgpu_limits noise = good;
        for (int changes = 0; changes < 3; changes++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            size_t at = (random >> 33) % sizeof noise;
            ((unsigned char *)&noise)[at] = (unsigned char)(random >> 24);
        }
        seal(&noise);
        if (vgpu_limits_parse(&noise, sizeof noise, &got) != NULL)
            continue;
        accepted++;
        CHECK(got.device_count >= 1 && got.device_count <= VGPU_MAX_DEVICES);
        CHECK(memchr(got.container, 0, sizeof got.container) != NULL);
        for (uint32_t d = 0; d < got.device_count; d++)
            CHECK(got.device[d].memory_bytes != 0 && got.device[d].memory_bytes <= VGPU_BYTES_MASK &&
                  got.device[d].core_percent <= 100);
    }
    CHECK(accepted > 0);
    return 0;
}
