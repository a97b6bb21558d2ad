// SPDX-License-Identifier: Apache-2.0
//
// integrity.c: the answer by which NVIDIA's runtime library knows its driver: HMAC
// (RFC 2104) with MD2 (RFC 1319) over what both know of the process and its devices.
// The key, and what is hashed in which order, are as the ZLUDA project (Apache-2.0,
// dark_api) has published them. A runtime that gets another answer fails every call with
// cudaErrorSoftwareValidityNotEstablished.
#include "private.h"

#include <string.h>

enum { BLOCK = 16, ROUNDS = 18 };

// The digits of pi, as RFC 1319 has them.
static const unsigned char pi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,
    98,  167, 5,   243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202,
    30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,  138, 23,  229, 18,
    190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122,
    169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,
    128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151, 3,
    255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198,
    79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241,
    69,  157, 112, 89,  100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,
    27,  96,  37,  173, 174, 176, 185, 246, 28,  70,  97,  105, 52,  64,  126, 15,
    85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,
    106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,
    120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,
    242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,
    49,  68,  80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

struct md2 {
    unsigned char state[BLOCK], sum[BLOCK], buffer[BLOCK];
    unsigned used;
};

static void block(struct md2 *h, const unsigned char *in, bool summed) {
    unsigned char x[3 * BLOCK], t = 0;
    for (int i = 0; i < BLOCK; i++) {
        x[i] = h->state[i];
        x[BLOCK + i] = in[i];
        x[2 * BLOCK + i] = in[i] ^ h->state[i];
    }
    unsigned char last = h->sum[BLOCK - 1];
    for (int i = 0; summed && i < BLOCK; i++) last = h->sum[i] ^= pi[in[i] ^ last];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3 * BLOCK; i++) t = x[i] ^= pi[t];
        t = (unsigned char)(t + round);
    }
    memcpy(h->state, x, BLOCK);
}

static void add(struct md2 *h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        h->buffer[h->used++] = ((const unsigned char *)bytes)[i];
        if (h->used < BLOCK) continue;
        h->used = 0;
        block(h, h->buffer, true);
    }
}

static void end(struct md2 *h, unsigned char digest[BLOCK]) {
    unsigned char pad[BLOCK], sum[BLOCK];
    memset(pad, (int)(BLOCK - h->used), sizeof pad);
    add(h, pad, BLOCK - h->used);
    memcpy(sum, h->sum, sizeof sum);
    block(h, sum, false);
    memcpy(digest, h->state, BLOCK);
}

static struct md2 keyed(unsigned char with) {
    static const unsigned char key[BLOCK] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                             0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
    unsigned char padded[BLOCK];
    struct md2 h = {.used = 0};
    for (int i = 0; i < BLOCK; i++) padded[i] = key[i] ^ with;
    add(&h, padded, sizeof padded);
    return h;
}

void integrity_answer(const struct integrity *asked, const struct integrity_device *devices,
                      unsigned n, unsigned char answer[16]) {
    struct md2 inner = keyed(0x36), outer = keyed(0x5c);
    add(&inner, asked, sizeof *asked);
    add(&inner, devices, n * sizeof *devices);
    end(&inner, answer);
    add(&outer, answer, BLOCK);
    end(&outer, answer);
}
