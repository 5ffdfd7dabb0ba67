/* What programs that tools/release builds use of glibc 2.29 and later, made of glibc 2.28. tools/old-glibc puts it into the archive
 * libnewer_glibc.a, which is linked before glibc. If a program needs more than this file has, the name of the wheel shows a newer
 * glibc, and tools/release fails. */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* 2.32, for libstdc++: whether the process has never had a second thread. It uses atomic instructions if this is 0. */
char __libc_single_threaded = 0;

/* 2.32: "TERM" for SIGTERM. tools/old-glibc declares it in string.h. */
const char* sigabbrev_np(int signal) {
  static const char* const names[] = {
      [SIGHUP] = "HUP",       [SIGINT] = "INT",   [SIGQUIT] = "QUIT",   [SIGILL] = "ILL",   [SIGTRAP] = "TRAP",
      [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",   [SIGFPE] = "FPE",     [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
      [SIGSEGV] = "SEGV",     [SIGUSR2] = "USR2", [SIGPIPE] = "PIPE",   [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
      [SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",   [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
      [SIGTTIN] = "TTIN",     [SIGTTOU] = "TTOU", [SIGURG] = "URG",     [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ",
      [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR",
      [SIGSYS] = "SYS"};
  return signal > 0 && signal < (int)(sizeof names / sizeof *names) ? names[signal] : NULL;
}

/* 2.36, for std::random_device. */
uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
    if (errno != EINTR) abort();
  }
  return value;
}

/* 2.29 has these without the hooks for errors of System V, which nothing uses. The values are the same. */
#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLDER(name, parameters, arguments)             \
  double older_##name parameters;                      \
  __asm__(".symver older_" #name "," #name "@" FIRST); \
  double name parameters { return older_##name arguments; }
OLDER(exp, (double x), (x))
OLDER(exp2, (double x), (x))
OLDER(log, (double x), (x))
OLDER(log2, (double x), (x))
OLDER(pow, (double x, double y), (x, y))

/* 2.30, for std::condition_variable::wait_until of a steady clock. An older glibc waits by the real-time clock alone. Where it is set back
 * meanwhile, the wait is longer by as much, as it was with the libstdc++ of the time. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* deadline) {
  static void* function = NULL; /* what dlsym returned, or this address if glibc lacks the function */
  void* found = __atomic_load_n(&function, __ATOMIC_RELAXED);
  if (found == NULL) {
    found = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    if (found == NULL) found = &function;
    __atomic_store_n(&function, found, __ATOMIC_RELAXED);
  }
  if (found != &function) {
    return ((int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*))found)(condition, mutex,
                                                                                                  clock, deadline);
  }
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += deadline->tv_sec - now.tv_sec;
  real.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += 1000000000;
    --real.tv_sec;
  } else if (real.tv_nsec >= 1000000000) {
    real.tv_nsec -= 1000000000;
    ++real.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &real);
}
