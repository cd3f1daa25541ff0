#include "environment/port_owner.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <unordered_set>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include "base/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Inodes = std::unordered_set<std::uint64_t>;

std::optional<std::uint32_t> parse_hex(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// "0100007F" -> "127.0.0.1": 32-bit words, each in the machine's byte order.
std::string parse_address(std::string_view hex) {
  std::array<std::uint32_t, 4> words{};
  const std::size_t count = std::min(hex.size() / 8, words.size());
  for (std::size_t i = 0; i < count; ++i) {
    words[i] = parse_hex(hex.substr(8 * i, 8)).value_or(0);
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(count == 1 ? AF_INET : AF_INET6, words.data(), text.data(), text.size());
  return text.data();
}

void read_table(const char* file, std::vector<ListeningSocket>& sockets) {
  constexpr std::string_view kListening = "0A";
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);  // the heading
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout;
    std::uint64_t inode = 0;
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    const auto colon = local.rfind(':');
    if (!words || state != kListening || colon == std::string::npos) {
      continue;
    }
    const auto port = parse_hex(std::string_view(local).substr(colon + 1));
    sockets.push_back({.address = parse_address(std::string_view(local).substr(0, colon)),
                       .port = static_cast<int>(port.value_or(0)),
                       .inode = inode});
  }
}

Inodes socket_inodes(const fs::path& process) {
  constexpr std::string_view kSocket = "socket:[";
  Inodes inodes;
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unreadable;
    const std::string target = fs::read_symlink(*entry, unreadable).string();
    std::uint64_t inode = 0;
    if (target.starts_with(kSocket) &&
        std::from_chars(target.data() + kSocket.size(), target.data() + target.size(), inode).ec == std::errc()) {
      inodes.insert(inode);
    }
  }
  return inodes;
}

std::string command_of(const fs::path& process) {
  constexpr std::size_t kShown = 100;
  std::ifstream in(process / "cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(in), {}};
  std::ranges::replace(command, '\0', ' ');
  command = printable(trim(command));
  return command.size() > kShown ? command.substr(0, kShown) + "..." : command;
}

std::string user_of(const fs::path& process) {
  struct stat status {};
  if (stat(process.c_str(), &status) != 0) {
    return "unknown";
  }
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  getpwuid_r(status.st_uid, &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->pw_name : fmt::format("{}", status.st_uid);
}

}  // namespace

std::vector<ListeningSocket> listening_sockets() {
  std::vector<ListeningSocket> sockets;
  read_table("/proc/net/tcp", sockets);
  read_table("/proc/net/tcp6", sockets);
  return sockets;
}

std::vector<ListeningSocket> listening_sockets(pid_t process) {
  const Inodes mine = socket_inodes(fmt::format("/proc/{}", process));
  auto sockets = listening_sockets();
  std::erase_if(sockets, [&](const auto& socket) { return !mine.contains(socket.inode); });
  return sockets;
}

std::string describe_process(pid_t process) {
  const fs::path folder = fmt::format("/proc/{}", process);
  return fmt::format("pid {} '{}' (user {})", process, command_of(folder), user_of(folder));
}

std::optional<pid_t> port_owner(int port) {
  Inodes wanted;
  for (const auto& socket : listening_sockets()) {
    if (socket.port == port) {
      wanted.insert(socket.inode);
    }
  }
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto pid = parse_int(entry->path().filename().string());
    if (!pid) {
      continue;
    }
    const Inodes inodes = socket_inodes(*entry);
    if (std::ranges::any_of(inodes, [&](auto inode) { return wanted.contains(inode); })) {
      return static_cast<pid_t>(*pid);
    }
  }
  return std::nullopt;
}

std::string describe_port_owner(int port) {
  const auto owner = port_owner(port);
  return owner ? describe_process(*owner) : "another process";
}

}  // namespace lockstep
