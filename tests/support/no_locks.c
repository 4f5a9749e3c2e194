/* A file system without locks: flock and the locks of fcntl fail as NO_LOCKS says (an errno). For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

static int refuse(void)
{
    const char *number = getenv("NO_LOCKS");
    errno = number ? atoi(number) : ENOSYS;
    return -1;
}

int flock(int fd, int operation)
{
    (void)fd;
    (void)operation;
    return refuse();
}

static int pass(const char *name, int fd, int command, void *argument)
{
    int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
    switch (command) {
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
        return refuse();
    default:
        return next(fd, command, argument);
    }
}

int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return pass("fcntl", fd, command, argument);
}

int fcntl64(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return pass("fcntl64", fd, command, argument);
}
