/* CRC-32C (Castagnoli, RFC 3720 appendix B.4): by the processor's instruction where it has one, else by
 * eight tables of 256 words. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t transfer_crc_tables[8][256];

static void transfer_crc_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0);
        transfer_crc_tables[0][byte] = value;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = transfer_crc_tables[row - 1][byte];
            transfer_crc_tables[row][byte] = (before >> 8) ^ transfer_crc_tables[0][before & 255];
        }
}

static uint32_t transfer_crc_software(uint32_t value, const unsigned char *at, size_t n) {
    uint32_t (*table)[256] = transfer_crc_tables;
    for (; n >= 8; at += 8, n -= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= value; /* the machines that this is built for are little-endian */
        value = table[7][low & 255] ^ table[6][(low >> 8) & 255] ^ table[5][(low >> 16) & 255] ^ table[4][low >> 24]
              ^ table[3][high & 255] ^ table[2][(high >> 8) & 255] ^ table[1][(high >> 16) & 255] ^ table[0][high >> 24];
    }
    while (n--)
        value = (value >> 8) ^ table[0][(value ^ *at++) & 255];
    return value;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t transfer_crc_hardware(uint32_t value, const unsigned char *at, size_t n) {
    uint64_t wide = value, word;
    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    value = (uint32_t)wide;
    while (n--)
        value = __builtin_ia32_crc32qi(value, *at++);
    return value;
}
static int transfer_crc_has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t transfer_crc_hardware(uint32_t value, const unsigned char *at, size_t n) {
    uint64_t word;
    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        value = __crc32cd(value, word);
    }
    while (n--)
        value = __crc32cb(value, *at++);
    return value;
}
static int transfer_crc_has_hardware(void) { return 1; }
#else
static uint32_t transfer_crc_hardware(uint32_t value, const unsigned char *at, size_t n) {
    return transfer_crc_software(value, at, n);
}
static int transfer_crc_has_hardware(void) { return 0; }
#endif
