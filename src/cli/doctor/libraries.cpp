// LibTorch, NCCL and cuDNN: which files a program would load, and the versions of the last two. The loader is asked, so
// that LD_LIBRARY_PATH and run paths count as in that program; the libraries are asked in a process of their own, which
// a damaged one may end.
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/text.h"
#include "base/write_all.h"
#include "cli/doctor/facts.h"
#include "cli/launch/shell_words.h"

namespace lockstep {
namespace {

namespace stdfs = std::filesystem;

using VersionNumber = std::size_t;
using AskVersion = VersionNumber (*)(void* library);

VersionNumber ask_nccl(void* library) {
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int number = 0;
  return get != nullptr && get(&number) == 0 ? static_cast<VersionNumber>(number) : 0;
}

VersionNumber ask_cudnn(void* library) {
  const auto get = reinterpret_cast<VersionNumber (*)()>(dlsym(library, "cudnnGetVersion"));
  return get != nullptr ? get() : 0;
}

/// What the child writes: "=22809", or why it cannot.
[[noreturn]] void answer(const char* file, AskVersion ask, int out) {
  constexpr unsigned kSeconds = 10;
  alarm(kSeconds);
  void* const library = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  const std::string text = library != nullptr ? fmt::format("={}", ask(library)) : dlerror();
  _exit(write(out, text.data(), text.size()) < 0 ? 1 : 0);
}

void find_version(LibraryFacts& facts, AskVersion ask) {
  std::array<int, 2> ends{};
  const pid_t child = pipe(ends.data()) == 0 ? fork() : -1;
  if (child < 0) {
    facts.problem = fmt::format("cannot start a process: {}", std::strerror(errno));
    return;
  }
  const Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  if (child == 0) {
    answer(facts.file.c_str(), ask, out.get());
  }
  out.close();
  const std::string text = read_to_end(in.get());
  int status = 0;
  waitpid(child, &status, 0);
  const std::int64_t number = parse_int(text.substr(text.starts_with('=') ? 1 : 0)).value_or(0);
  if (number > 0) {
    facts.version = library_version(number);
  } else if (!text.empty()) {
    facts.problem = text == "=0" ? "it does not give its version" : printable(first_line(text));
  } else {
    facts.problem = fmt::format(
        "it ended a process that asked for its version: {}",
        WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : fmt::format("exit code {}", WEXITSTATUS(status)));
  }
}

/// The loader's list of the libraries of `file`, as ldd prints it, or its error.
std::string loader_list(const stdfs::path& file) {
  Dl_info loader{};
  if (dladdr(reinterpret_cast<const void*>(getauxval(AT_BASE)), &loader) == 0) {
    return {};
  }
  const std::array<std::string, 2> words{loader.dli_fname, file.string()};
  const std::string command = "LD_TRACE_LOADED_OBJECTS=1 " + shell_command(words) + " 2>&1";
  const auto close = [](FILE* stream) { pclose(stream); };
  const std::unique_ptr<FILE, decltype(close)> stream(popen(command.c_str(), "re"), close);
  return stream ? read_to_end(fileno(stream.get())) : std::string();
}

/// Of a file that exists. "a/../b" is not simply "b": a may be a link to another directory.
std::string real_path(const stdfs::path& file) {
  std::error_code error;
  const stdfs::path folder = stdfs::canonical(file.parent_path(), error);
  return error ? file.string() : (folder / file.filename()).string();
}

/// From "\tlibnccl.so.2 => /usr/lib/libnccl.so.2 (0x00007f...)".
LibraryFacts find_library(std::string_view list, std::string_view name) {
  constexpr std::string_view kArrow = " => ";
  constexpr std::string_view kError = "error while loading shared libraries: ";
  LibraryFacts facts{};
  for (const std::string& line : split(list, '\n')) {
    const std::size_t arrow = line.find(kArrow);
    if (const std::size_t error = line.find(kError); error != std::string::npos) {
      facts.problem = printable(line.substr(error + kError.size()));
    } else if (arrow != std::string::npos && trim(line).starts_with(name)) {
      const std::string found = line.substr(arrow + kArrow.size());
      if (!found.starts_with('/')) {
        facts.problem = fmt::format("{} is not found", trim(line.substr(0, arrow)));
        break;
      }
      facts.file = real_path(found.substr(0, found.rfind(" (")));
      break;
    }
  }
  return facts;
}

LibraryFacts with_version(LibraryFacts facts, AskVersion ask) {
  if (!facts.file.empty()) {
    find_version(facts, ask);
  }
  return facts;
}

}  // namespace

LibraryFacts collect_libtorch_library(const stdfs::path& user) {
  return find_library(loader_list(user), "libtorch_cpu.so");
}

CudaLibraries collect_cuda_libraries(const stdfs::path& user) {
  const std::string list = loader_list(user);
  return {.nccl = with_version(find_library(list, "libnccl.so"), ask_nccl),
          .cudnn = with_version(find_library(list, "libcudnn.so"), ask_cudnn)};
}

}  // namespace lockstep
