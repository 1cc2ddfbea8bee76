// The end of a process by a signal: its folder of temporary files is removed first. Python's own handlers would run when the
// main thread comes back from C, which a process that hangs never does; this one runs at once.
#pragma once
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace coilwork {

// A folder, and whose it is: a forked child inherits both.
struct OwnFolder {
  static constexpr size_t LONGEST = 4096;
  char path[LONGEST];
  volatile pid_t owner;
};
static OwnFolder own_folder;

// Calls only what a handler may call (signal-safety(7)); between vfork and exec the child calls nothing else.
static void remove_and_end(int number) {
  if (own_folder.owner == getpid()) {
    static char program[] = "/bin/rm", options[] = "-rf", rest[] = "--";
    char* const arguments[] = {program, options, rest, own_folder.path, nullptr};
    char* const variables[] = {nullptr};
    const pid_t child = vfork();
    if (child == 0) {
      execve(program, arguments, variables);
      _exit(127);
    }
    while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  signal(number, SIG_DFL);
  // it arrives when this returns
  ::raise(number);
}

// Lets signals that end the process remove the folder at `path` first, unless somebody handles or ignores them. False if the
// path is too long.
static bool remove_when_ended(const char* path) {
  const size_t length = strlen(path);
  if (length >= OwnFolder::LONGEST) return false;
  own_folder.owner = 0;
  memcpy(own_folder.path, path, length + 1);
  own_folder.owner = getpid();
  for (const int number : {SIGTERM, SIGHUP}) {
    struct sigaction known;
    if (sigaction(number, nullptr, &known) != 0 || (known.sa_flags & SA_SIGINFO) || known.sa_handler != SIG_DFL) continue;
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = remove_and_end;
    sigemptyset(&ours.sa_mask);
    sigaction(number, &ours, nullptr);
  }
  return true;
}

}  // namespace coilwork
