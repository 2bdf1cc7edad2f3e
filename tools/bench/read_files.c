/* How fast files are read that are not in the page cache: for the image benchmarks, inside and outside
 * of sandboxes, so it is static and needs nothing.
 *
 *   esker-read-files sequential|random SECONDS FILE...
 *
 * sequential: every file once, in order, in pieces of 1 MiB. random: blocks of 4 KiB of all files in a
 * random order, each at most once, for at most so many seconds. Prints what=... bytes=... seconds=... */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { kPiece = 1 << 20, kBlock = 4096 };

struct block {
  int fd;
  uint32_t number;
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int open_cold(const char* name, int advice) {
  int fd = open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(name);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  posix_fadvise(fd, 0, 0, advice);
  return fd;
}

static uint64_t read_in_order(int count, char** names, char* buffer) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    int fd = open_cold(names[i], POSIX_FADV_NORMAL);
    ssize_t n;
    while ((n = read(fd, buffer, kPiece)) > 0) bytes += (uint64_t)n;
    if (n < 0) fail(names[i]);
    close(fd);
  }
  return bytes;
}

static size_t all_blocks(int count, char** names, struct block** out) {
  size_t total = 0, room = 0;
  struct block* blocks = NULL;
  for (int i = 0; i < count; ++i) {
    int fd = open_cold(names[i], POSIX_FADV_RANDOM);
    struct stat st;
    if (fstat(fd, &st) != 0) fail(names[i]);
    for (uint32_t number = 0; number < st.st_size / kBlock; ++number) {
      if (total == room) blocks = realloc(blocks, (room = room * 2 + 4096) * sizeof(*blocks));
      if (blocks == NULL) fail("memory");
      blocks[total++] = (struct block){fd, number};
    }
  }
  uint64_t state = 88172645463325252ull; /* xorshift64: the same order every time */
  for (size_t i = total; i > 1; --i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    struct block moved = blocks[i - 1];
    size_t with = state % i;
    blocks[i - 1] = blocks[with];
    blocks[with] = moved;
  }
  *out = blocks;
  return total;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: %s sequential|random SECONDS FILE...\n", argv[0]);
    return 2;
  }
  char* buffer = malloc(kPiece);
  if (buffer == NULL) fail("memory");
  uint64_t bytes = 0;
  double seconds;
  if (strcmp(argv[1], "sequential") == 0) {
    double start = now();
    bytes = read_in_order(argc - 3, argv + 3, buffer);
    seconds = now() - start;
  } else {
    struct block* blocks;
    size_t total = all_blocks(argc - 3, argv + 3, &blocks);
    double start = now(), end = start + atof(argv[2]);
    for (size_t i = 0; i < total && (i % 64 != 0 || now() < end); ++i) {
      ssize_t n = pread(blocks[i].fd, buffer, kBlock, (off_t)blocks[i].number * kBlock);
      if (n != kBlock) fail("read");
      bytes += kBlock;
    }
    seconds = now() - start;
  }
  printf("what=%s bytes=%llu seconds=%.6f\n", argv[1], (unsigned long long)bytes, seconds);
  return 0;
}
