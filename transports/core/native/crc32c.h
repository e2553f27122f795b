/* CRC-32C (Castagnoli, RFC 3720 appendix B.4): by the processor's instruction where it has one, else by
 * eight tables of 256 words. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t transfer_crc_tables[8][256];

static void transfer_crc_prepare_tables(void) {
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

/* Each instruction waits for the one before it, but three streams of them fill the processor: three parts of
 * TRANSFER_CRC_PART bytes are summed at the same time. transfer_crc_shift is the change of a sum by so many
 * following zero bytes. */
#define TRANSFER_CRC_PART 1024
static uint32_t transfer_crc_shift[4][256];

static void transfer_crc_prepare_shift(void) {
    static const unsigned char zeros[TRANSFER_CRC_PART];
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++)
        of_bit[bit] = transfer_crc_software(1u << bit, zeros, TRANSFER_CRC_PART);
    for (int row = 0; row < 4; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t value = 0;
            for (int bit = 0; bit < 8; bit++)
                value ^= byte >> bit & 1 ? of_bit[8 * row + bit] : 0;
            transfer_crc_shift[row][byte] = value;
        }
}

static inline uint32_t transfer_crc_behind(uint32_t value) {
    return transfer_crc_shift[0][value & 255] ^ transfer_crc_shift[1][(value >> 8) & 255]
         ^ transfer_crc_shift[2][(value >> 16) & 255] ^ transfer_crc_shift[3][value >> 24];
}

static void transfer_crc_prepare(void) {
    transfer_crc_prepare_tables();
    transfer_crc_prepare_shift();
}

/* Wheels are built for the oldest processor of their kind: one function is compiled for the instruction, and the
 * processor is asked at run time. The compilers name the feature differently. */
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__clang__)
#define TRANSFER_CRC_TARGET __attribute__((target("sse4.2,crc32"))) /* gcc has it in sse4.2 */
#else
#define TRANSFER_CRC_TARGET __attribute__((target("sse4.2")))
#endif
#define TRANSFER_CRC_WORD(value, word) ((uint32_t)__builtin_ia32_crc32di(value, word))
#define TRANSFER_CRC_BYTE(value, byte) __builtin_ia32_crc32qi(value, byte)
/* Not __builtin_cpu_supports: where clang's runtime library is zig's, it answers 0 on every processor. */
static int transfer_crc_has_hardware(void) {
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_SSE4_2) != 0;
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#if defined(__clang__)
#define TRANSFER_CRC_TARGET __attribute__((target("crc")))
#else
#define TRANSFER_CRC_TARGET __attribute__((target("+crc")))
#endif
#define TRANSFER_CRC_WORD(value, word) __crc32cd(value, word)
#define TRANSFER_CRC_BYTE(value, byte) __crc32cb(value, byte)
/* Optional in ARMv8.0. */
static int transfer_crc_has_hardware(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static int transfer_crc_has_hardware(void) { return 0; }
#endif

#if defined(TRANSFER_CRC_WORD)
TRANSFER_CRC_TARGET
static uint32_t transfer_crc_hardware(uint32_t value, const unsigned char *at, size_t n) {
    uint64_t word, second, third;
    for (; n >= 3 * TRANSFER_CRC_PART; at += 3 * TRANSFER_CRC_PART, n -= 3 * TRANSFER_CRC_PART) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < TRANSFER_CRC_PART; i += 8) {
            memcpy(&word, at + i, 8);
            memcpy(&second, at + TRANSFER_CRC_PART + i, 8);
            memcpy(&third, at + 2 * TRANSFER_CRC_PART + i, 8);
            value = TRANSFER_CRC_WORD(value, word);
            b = TRANSFER_CRC_WORD(b, second);
            c = TRANSFER_CRC_WORD(c, third);
        }
        value = transfer_crc_behind(transfer_crc_behind(value) ^ b) ^ c;
    }
    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        value = TRANSFER_CRC_WORD(value, word);
    }
    while (n--)
        value = TRANSFER_CRC_BYTE(value, *at++);
    return value;
}
#else
static uint32_t transfer_crc_hardware(uint32_t value, const unsigned char *at, size_t n) {
    return transfer_crc_software(value, at, n);
}
#endif
