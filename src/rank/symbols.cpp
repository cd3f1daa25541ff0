#include "rank/symbols.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"

namespace lockstep {
namespace {

/// The file from which an address was loaded.
struct Mapping {
  std::array<char, 512> path{};
  std::uintptr_t offset = 0;  // of the address in the file
};

/// Reads the lines of a file of any size in fixed memory; longer lines are cut.
class LineReader {
 public:
  explicit LineReader(const char* path) noexcept : file_(open(path, O_RDONLY | O_CLOEXEC)) {}

  std::optional<std::string_view> next() noexcept {
    size_ = 0;
    bool any = false;
    for (char c = 0; get(c); any = true) {
      if (c == '\n') {
        return text();
      }
      if (size_ < line_.size()) {
        line_[size_++] = c;
      }
    }
    return any ? std::optional(text()) : std::nullopt;
  }

 private:
  std::string_view text() const noexcept { return {line_.data(), size_}; }
  bool get(char& c) noexcept {
    if (at_ == end_) {
      const ssize_t got = read(file_.get(), buffer_.data(), buffer_.size());
      at_ = 0;
      end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    if (at_ == end_) {
      return false;
    }
    c = buffer_[at_++];
    return true;
  }

  Descriptor file_;
  std::array<char, 4096> buffer_;
  std::array<char, 640> line_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::size_t size_ = 0;
};

/// Removes a hexadecimal number and the following character from the text.
std::uintptr_t take_hex(std::string_view& text) noexcept {
  std::uintptr_t number = 0;
  const char* end = std::from_chars(text.data(), text.data() + text.size(), number, 16).ptr;
  text.remove_prefix(std::min(text.size(), static_cast<std::size_t>(end - text.data()) + 1));
  return number;
}

/// "7f12a000-7f12c000 r-xp 00001000 08:01 4711   /usr/lib/libc.so.6"
bool find_mapping(std::uintptr_t address, Mapping& found) noexcept {
  LineReader maps("/proc/self/maps");
  while (auto line = maps.next()) {
    std::string_view rest = *line;
    const std::uintptr_t begin = take_hex(rest);
    const std::uintptr_t end = take_hex(rest);
    if (address < begin || address >= end) {
      continue;
    }
    rest.remove_prefix(std::min<std::size_t>(rest.size(), std::strlen("r-xp ")));
    const std::uintptr_t offset = take_hex(rest);
    const std::size_t path = rest.find('/');
    if (path == std::string_view::npos) {
      return false;
    }
    rest = rest.substr(path, found.path.size() - 1);
    std::ranges::copy(rest, found.path.begin());
    found.path[rest.size()] = '\0';
    found.offset = address - begin + offset;
    return true;
  }
  return false;
}

/// An ELF file in memory. It may be truncated or not be an ELF file, so every access is checked.
class ElfFile {
 public:
  explicit ElfFile(const char* path) noexcept {
    const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
      return;
    }
    void* memory = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory != MAP_FAILED) {
      bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)};
    }
    const auto* header = at<ElfW(Ehdr)>(0, 1).data();
    if (header != nullptr && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0) {
      segments_ = at<ElfW(Phdr)>(header->e_phoff, header->e_phnum);
      sections_ = at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
    }
  }
  ~ElfFile() {
    if (!bytes_.empty()) {
      munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  /// Address that the linker gave to this offset.
  std::uintptr_t linked_address(std::uintptr_t offset) const noexcept {
    for (const auto& segment : segments_) {
      if (segment.p_type == PT_LOAD && offset >= segment.p_offset && offset - segment.p_offset < segment.p_filesz) {
        return offset - segment.p_offset + segment.p_vaddr;
      }
    }
    return offset;
  }

  struct Function {
    std::string_view name{};
    std::uintptr_t begin = 0;
  };
  Function function_at(std::uintptr_t linked) const noexcept {
    for (const ElfW(Word) kind : {ElfW(Word){SHT_SYMTAB}, ElfW(Word){SHT_DYNSYM}}) {
      for (const auto& section : sections_) {
        if (section.sh_type != kind || section.sh_link >= sections_.size()) {
          continue;
        }
        for (const auto& symbol : at<ElfW(Sym)>(section.sh_offset, section.sh_size / sizeof(ElfW(Sym)))) {
          if ((symbol.st_info & 0xf) == STT_FUNC && linked >= symbol.st_value &&
              linked - symbol.st_value < symbol.st_size) {
            return {string_at(sections_[section.sh_link], symbol.st_name), symbol.st_value};
          }
        }
      }
    }
    return {};
  }

 private:
  template <class T>
  std::span<const T> at(std::uintptr_t offset, std::size_t count) const noexcept {
    const bool fits =
        offset <= bytes_.size() && count <= (bytes_.size() - offset) / sizeof(T) && offset % alignof(T) == 0;
    return fits ? std::span(reinterpret_cast<const T*>(bytes_.data() + offset), count) : std::span<const T>();
  }
  std::string_view string_at(const ElfW(Shdr) & table, std::size_t offset) const noexcept {
    const auto text = at<char>(table.sh_offset, table.sh_size);
    return offset < text.size()
               ? std::string_view(text.data() + offset, strnlen(text.data() + offset, text.size() - offset))
               : std::string_view();
  }

  std::span<const std::byte> bytes_{};
  std::span<const ElfW(Phdr)> segments_{};
  std::span<const ElfW(Shdr)> sections_{};
};

/// Removes a name such as "7Trainer" from the text.
std::string_view take_name(std::string_view& text) noexcept {
  std::size_t length = 0;
  const char* end = std::from_chars(text.data(), text.data() + text.size(), length).ptr;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const std::string_view name = text.substr(0, length);
  text.remove_prefix(name.size());
  return name;
}

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

}  // namespace

void add_readable_name(LineBuffer& line, std::string_view mangled) noexcept {
  std::string_view rest = mangled;
  if (!rest.starts_with("_Z")) {
    line.add(mangled);
    return;
  }
  rest.remove_prefix(2);
  bool nested = false;
  while (!rest.empty() && std::string_view("ZNKVL").find(rest.front()) != std::string_view::npos) {
    nested = nested || rest.front() == 'N';
    rest.remove_prefix(1);
  }
  std::string_view last;
  const auto component = [&](std::string_view name, std::string_view mark = {}) {
    line.add(last.empty() ? "" : "::").add(mark).add(name);
    last = name;
  };
  while (!rest.empty()) {
    if (rest.starts_with("St")) {
      rest.remove_prefix(2);
      component("std");
      nested = nested || (!rest.empty() && is_digit(rest.front()));
    } else if (is_digit(rest.front())) {
      const std::string_view name = take_name(rest);
      component(name.starts_with("_GLOBAL__N") ? "(anonymous namespace)" : name);
      if (!nested) {
        break;
      }
    } else if (rest.front() == 'L') {  // internal linkage
      rest.remove_prefix(1);
    } else if (rest.front() == 'C' || (rest.front() == 'D' && rest.size() > 1 && is_digit(rest[1]))) {
      component(last, rest.front() == 'D' ? "~" : "");
      break;
    } else {
      if (rest.front() == 'I' && !last.empty()) {
        line.add("<>");
      } else if (rest.starts_with("Ul")) {
        component("{lambda}");
      }
      break;
    }
  }
  if (last.empty()) {
    line.add(mangled);
  }
}

void add_symbol(LineBuffer& line, std::uintptr_t address) noexcept {
  Mapping mapping;
  if (!find_mapping(address, mapping)) {
    line.add("?? (").add_hex(address).add(")");
    return;
  }
  const ElfFile file(mapping.path.data());
  const std::uintptr_t linked = file.linked_address(mapping.offset);
  const ElfFile::Function function = file.function_at(linked);
  if (function.name.empty()) {
    line.add("??");
  } else {
    add_readable_name(line, function.name);
    line.add("+").add_hex(linked - function.begin);
  }
  const std::string_view path(mapping.path.data());
  line.add(" (").add(path.substr(path.rfind('/') + 1)).add("+").add_hex(linked).add(")");
}

}  // namespace lockstep
