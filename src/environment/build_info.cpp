#include "environment/build_info.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/auxv.h>

#include <lockstep/version.h>

#include "base/text.h"

namespace lockstep {
namespace {

struct Search {
  std::uintptr_t address;
  std::string id;
};

std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

/// The build id among the notes of a segment; "": not found.
std::string find_id(std::span<const std::byte> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header{};
    std::memcpy(&header, notes.data(), sizeof header);
    const std::size_t name = sizeof header;
    const std::size_t description = name + padded(header.n_namesz);
    const std::size_t end = description + padded(header.n_descsz);
    if (end > notes.size()) {
      break;
    }
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof(ELF_NOTE_GNU) &&
        std::memcmp(notes.data() + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
      std::string id;
      for (const std::byte byte : notes.subspan(description, header.n_descsz)) {
        id += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
      }
      return id;
    }
    notes = notes.subspan(end);
  }
  return {};
}

int look_at(dl_phdr_info* file, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::span segments(file->dlpi_phdr, file->dlpi_phnum);
  bool here = false;
  std::uint64_t loaded = 0;
  for (const auto& segment : segments) {
    if (segment.p_type == PT_LOAD) {
      here = here || search.address - (file->dlpi_addr + segment.p_vaddr) < segment.p_memsz;
      loaded += segment.p_filesz;
    }
  }
  if (!here) {
    return 0;
  }
  for (const auto& segment : segments) {
    if (segment.p_type == PT_NOTE && search.id.empty()) {
      search.id = find_id({reinterpret_cast<const std::byte*>(file->dlpi_addr + segment.p_vaddr), segment.p_memsz});
    }
  }
  if (search.id.empty()) {
    search.id = fmt::format("{} bytes", loaded);
  }
  return 1;
}

std::string find_build(std::uintptr_t address) {
  Search search{.address = address, .id = {}};
  return dl_iterate_phdr(look_at, &search) == 1 ? search.id : "unknown";
}

}  // namespace

std::string build_id_of(const void* address) { return find_build(reinterpret_cast<std::uintptr_t>(address)); }

std::string program_build_id() { return find_build(getauxval(AT_PHDR)); }

LibTorchBuild libtorch_build() {
  return {.version = LOCKSTEP_LIBTORCH_VERSION, .cuda_version = LOCKSTEP_LIBTORCH_CUDA_VERSION};
}

std::string compiler() { return LOCKSTEP_COMPILER; }

std::string build_text() {
  const LibTorchBuild torch = libtorch_build();
  std::vector<std::string> parts{fmt::format("lockstep {}", LOCKSTEP_VERSION)};
  if (!torch.version.empty()) {
    parts.push_back(fmt::format("LibTorch {}", torch.version));
  }
  if (!torch.cuda_version.empty()) {
    parts.push_back(fmt::format("CUDA {}", torch.cuda_version));
  }
  parts.push_back(compiler());
  return join(parts, ", ");
}

bool built_with_cuda() noexcept { return LOCKSTEP_CUDA_BUILT != 0; }
bool built_with_nccl() noexcept { return LOCKSTEP_NCCL_BUILT != 0; }

}  // namespace lockstep
