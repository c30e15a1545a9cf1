// System calls, and those of std::filesystem, replaced by the linker's --wrap: in a history each is
// a step, and descriptors and mappings are recorded for the calling process. `__real_X` is the C
// library's X. Owner: none; free functions. Threads: one. Cost: the call. Errors: errno.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace deltawire::simulation {
/// Rises with every call after which a name may show other bytes: one that changes names, that
/// writes to a file, or that maps one to write.
uint64_t FileChanges();
/// `listener` is called in the very step in which `rename` gave a file this path.
void OnRenamed(void (*listener)(const char* path));
}  // namespace deltawire::simulation

extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_close(int fd);
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* at, size_t bytes);
int __real_fcntl(int fd, int command, ...);
}
