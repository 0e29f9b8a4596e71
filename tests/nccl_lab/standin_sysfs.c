/* LD_PRELOAD: what lies under $IBV_STANDIN_SYSFS is seen as if it lay under /: the /sys of devices that the stand-in plays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *seen(const char *path, char *to) {
  const char *root = getenv("IBV_STANDIN_SYSFS");
  struct stat found;
  if (root == NULL || path == NULL || strncmp(path, "/sys/", 5)) return path;
  snprintf(to, PATH_MAX, "%s%s", root, path);
  return lstat(to, &found) == 0 ? to : path;
}

char *realpath(const char *path, char *to) {
  static char *(*real)(const char *, char *);
  char other[PATH_MAX];
  const char *root = getenv("IBV_STANDIN_SYSFS"), *at = seen(path, other);
  if (real == NULL) real = (char *(*)(const char *, char *))dlvsym(RTLD_NEXT, "realpath", "GLIBC_2.3");
  char *found = real(at, to);
  if (found && at == other && !strncmp(found, root, strlen(root))) memmove(found, found + strlen(root), strlen(found + strlen(root)) + 1);
  return found;
}
char *__realpath_chk(const char *path, char *to, size_t size) {
  (void)size;
  return realpath(path, to);
}

#define OPEN(NAME)                                                  \
  int NAME(const char *path, int flags, ...) {                      \
    static int (*real)(const char *, int, ...);                     \
    char other[PATH_MAX];                                           \
    va_list rest;                                                   \
    va_start(rest, flags);                                          \
    int mode = va_arg(rest, int);                                   \
    va_end(rest);                                                   \
    if (real == NULL) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #NAME); \
    return real(seen(path, other), flags, mode);                    \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(NAME)                                                 \
  FILE *NAME(const char *path, const char *mode) {                  \
    static FILE *(*real)(const char *, const char *);               \
    char other[PATH_MAX];                                           \
    if (real == NULL) real = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, #NAME); \
    return real(seen(path, other), mode);                           \
  }
FOPEN(fopen)
FOPEN(fopen64)
