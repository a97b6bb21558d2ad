// SPDX-License-Identifier: Apache-2.0
//
// unit/integrity: the hash by which NVIDIA's runtime library knows its driver is MD2, by the
// answers that RFC 1319 (A.5) gives, and its use HMAC by RFC 2104's definition. That the key
// and the order are NVIDIA's, only NVIDIA's runtime can say (test/nvidia).
#include "../cuda/integrity.c"

#include "check.h"

static void md2(const void *bytes, size_t n, unsigned char digest[BLOCK]) {
    struct md2 h = {.used = 0};
    add(&h, bytes, n);
    end(&h, digest);
}

static void says(const char *text, const char *want) {
    unsigned char digest[BLOCK];
    char hex[2 * BLOCK + 1];
    md2(text, strlen(text), digest);
    for (int i = 0; i < BLOCK; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(hex, want) == 0) return;
    printf("MD2 of \"%s\" is %s, want %s\n", text, hex, want);
    exit(1);
}

// A whole message at a time, of which the answer is made in pieces.
static void answers(unsigned n) {
    static const unsigned char key[BLOCK] = "\x14\x6a\xdd\xae\x53\xa9\xa7\x52\xaa\x08\x41\x36\x0b\xf5\x5a\x9f";
    struct integrity asked;
    struct integrity_device devices[3];
    unsigned char message[BLOCK + sizeof asked + sizeof devices], outer[2 * BLOCK], answer[BLOCK];
    for (size_t i = 0; i < sizeof asked; i++) ((unsigned char *)&asked)[i] = (unsigned char)(7 * i);
    for (size_t i = 0; i < sizeof devices; i++) ((unsigned char *)devices)[i] = (unsigned char)(11 * i + 5);
    size_t length = n * sizeof devices[0];
    for (int i = 0; i < BLOCK; i++) {
        message[i] = key[i] ^ 0x36;
        outer[i] = key[i] ^ 0x5c;
    }
    memcpy(message + BLOCK, &asked, sizeof asked);
    memcpy(message + BLOCK + sizeof asked, devices, length);
    md2(message, BLOCK + sizeof asked + length, outer + BLOCK);
    md2(outer, sizeof outer, outer);
    integrity_answer(&asked, devices, n, answer);
    SAME(memcmp(answer, outer, BLOCK), 0);
}

int main(void) {
    says("", "8350e5a3e24c153df2275c9f80692773");
    says("a", "32ec01ec4a6dac72c0ab96fb34c0b5d1");
    says("abc", "da853b0d3f88d99b30283a69e6ded6bb");
    says("message digest", "ab4f496bfb2a530b219ff33031fe06b0");
    says("abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b");
    says("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "da33def2a42df13975352846c30338cd");
    says("12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "d5976f79d83d3a0dc9806c3c66f3efd8");
    for (unsigned n = 0; n <= 3; n++) answers(n);
    SAME(sizeof(struct integrity), 48); // what NVIDIA's side hashes has no padding
    SAME(sizeof(struct integrity_device), 28);
    return 0;
}
