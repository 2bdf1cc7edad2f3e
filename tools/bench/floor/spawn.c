// esker-floor-spawn: fork, exec and wait for a program, over and over; what starting a command
// costs where this runs. Static, so that it runs in any root.
//
//   esker-floor-spawn PROGRAM WORKERS SECONDS
//
// Prints one JSON object. Run inside a sandbox it is the floor of the exec round trip.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMost = 1 << 20 };

static int64_t Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static int Compare(const void* a, const void* b) {
  int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
  return (x > y) - (x < y);
}

static void SpawnUntil(const char* program, int64_t end, int out) {
  int64_t* times = malloc(kMost * sizeof(int64_t));
  int64_t count = 0;
  for (int64_t start = Now(); start < end && count < kMost; start = Now()) {
    pid_t pid = fork();
    if (pid == 0) {
      execl(program, program, (char*)NULL);
      _exit(127);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0) _exit(1);
    times[count++] = Now() - start;
  }
  qsort(times, (size_t)count, sizeof(int64_t), Compare);
  int64_t figures[3] = {count, times[count / 2], times[count * 99 / 100]};
  _exit(write(out, figures, sizeof(figures)) == sizeof(figures) ? 0 : 1);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: esker-floor-spawn PROGRAM WORKERS SECONDS\n");
    return 2;
  }
  int workers = atoi(argv[2]), results[2];
  if (pipe(results) != 0) return 1;
  int64_t start = Now(), end = start + (int64_t)(atof(argv[3]) * 1e9);
  for (int i = 0; i < workers; ++i) {
    if (fork() == 0) SpawnUntil(argv[1], end, results[1]);
  }
  close(results[1]);
  int64_t one[3], count = 0, p50 = 0, p99 = 0;
  int got = 0;
  for (; read(results[0], one, sizeof(one)) == (ssize_t)sizeof(one); ++got) {
    count += one[0];
    p50 += one[1];
    p99 += one[2];
  }
  double seconds = (double)(Now() - start) / 1e9;
  while (wait(NULL) > 0) continue;
  if (got != workers) {
    fprintf(stderr, "esker-floor-spawn: %s could not be run\n", argv[1]);
    return 1;
  }
  printf("{\"per_second\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", (double)count / seconds,
         (double)p50 / got / 1000, (double)p99 / got / 1000);
  return 0;
}
