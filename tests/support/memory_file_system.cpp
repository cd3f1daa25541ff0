#include "support/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/io_error.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;
using Bytes = std::vector<std::byte>;

struct Node;
using NodePointer = std::shared_ptr<Node>;
using Entries = std::map<std::string, NodePointer>;

/// A file, a directory or a symbolic link, with two states: what programs see and what is on the disk.
struct Node {
  bool is_directory = false;
  Bytes data{};
  Bytes durable_data{};
  bool poisoned = false;  // a sync failed: the unsynced data is lost
  Entries entries{};
  Entries durable_entries{};
  std::optional<Path> link{};
};

NodePointer survivor(const Node& node, Unsynced unsynced) {
  auto copy = std::make_shared<Node>();
  copy->is_directory = node.is_directory;
  copy->link = node.link;
  copy->data = unsynced == Unsynced::all_kept ? node.data : node.durable_data;
  copy->durable_data = copy->data;
  for (const auto& [name, child] : unsynced == Unsynced::lost ? node.durable_entries : node.entries) {
    copy->entries[name] = survivor(*child, unsynced);
  }
  copy->durable_entries = copy->entries;
  return copy;
}

}  // namespace

struct MemoryFileSystem::State {
  std::mutex mutex;
  NodePointer root = std::make_shared<Node>(Node{.is_directory = true});
  std::vector<std::string> trace;
  int fail_from = -1, fail_until = -1, fail_error = 0;
  int power_lost_at = -1;
  std::int64_t free_bytes = std::int64_t{1} << 40;
  std::map<std::string, std::string> locks;  // path -> text of the owner

  /// Counts an operation; returns the errno with which it must fail, or 0.
  int begin(std::string_view verb, const std::string& what) {
    const int index = static_cast<int>(trace.size());
    if (power_lost_at >= 0 && index >= power_lost_at) {
      throw PowerLost{};
    }
    trace.push_back(fmt::format("{} {}", verb, what));
    return index >= fail_from && index < fail_until ? fail_error : 0;
  }

  void begin_or_throw(std::string_view verb, const Path& path) {
    if (const int error = begin(verb, path.string()); error != 0) {
      throw_io_error(verb, path, error);
    }
  }

  static std::vector<std::string> parts(const Path& path) {
    std::vector<std::string> names;
    for (const Path& part : path.lexically_normal().relative_path()) {
      if (!part.empty() && part != ".") {
        names.push_back(part.string());
      }
    }
    return names;
  }

  NodePointer find(const Path& path) const {
    NodePointer node = root;
    for (const std::string& name : parts(path)) {
      const auto child = node->entries.find(name);
      if (child == node->entries.end()) {
        return nullptr;
      }
      node = child->second;
    }
    return node;
  }

  /// The parent directory of `path`.
  Node& parent(std::string_view verb, const Path& path) const {
    const NodePointer node = find(path.lexically_normal().parent_path());
    if (node == nullptr || !node->is_directory) {
      throw_io_error(verb, path, node == nullptr ? ENOENT : ENOTDIR);
    }
    return *node;
  }

  NodePointer add_file(const Path& path) const {
    auto file = std::make_shared<Node>();
    parent("create", path).entries[path.filename().string()] = file;
    return file;
  }
};

class MemoryFileSystem::File final : public WritableFile {
 public:
  File(std::shared_ptr<State> state, NodePointer node, Path path)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)) {}

  void reserve(std::int64_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->begin_or_throw("reserve", path_);
    if (bytes > state_->free_bytes) {
      throw_io_error(fmt::format("reserve {} bytes for", bytes), path_, ENOSPC);
    }
  }

  void append(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(state_->mutex);
    const int error = state_->begin("write", path_.string());
    const auto written = error == 0 ? bytes : bytes.first(bytes.size() / 2);
    node_->data.insert(node_->data.end(), written.begin(), written.end());
    if (error != 0) {
      throw_io_error("write", path_, error);
    }
  }

  void truncate(std::int64_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->begin_or_throw("shorten", path_);
    node_->data.resize(static_cast<std::size_t>(bytes));
  }

  void sync() override {
    const std::lock_guard lock(state_->mutex);
    if (const int error = state_->begin("sync", path_.string()); error != 0) {
      node_->poisoned = true;
      throw_io_error("sync", path_, error);
    }
    if (!node_->poisoned) {
      node_->durable_data = node_->data;
    }
  }

  void close() override {
    const std::lock_guard lock(state_->mutex);
    state_->begin_or_throw("close", path_);
  }

  bool is_in_place() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->find(path_) == node_;
  }

 private:
  std::shared_ptr<State> state_;
  NodePointer node_;
  Path path_;
};

class MemoryFileSystem::Reader final : public RandomAccessFile {
 public:
  Reader(std::shared_ptr<State> state, NodePointer node, Path path)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)) {}

  std::int64_t size() const override {
    const std::lock_guard lock(state_->mutex);
    return static_cast<std::int64_t>(node_->data.size());
  }

  void read(std::int64_t offset, std::span<std::byte> out) const override {
    const std::lock_guard lock(state_->mutex);
    const auto start = static_cast<std::size_t>(offset);
    if (start > node_->data.size() || out.size() > node_->data.size() - start) {
      throw IoError(fmt::format("cannot read {}: the file ends at byte {}, expected {} bytes at {}", path_.string(),
                                node_->data.size(), out.size(), offset));
    }
    std::copy_n(node_->data.begin() + static_cast<std::ptrdiff_t>(start), out.size(), out.begin());
  }

 private:
  std::shared_ptr<State> state_;
  NodePointer node_;
  Path path_;
};

class MemoryFileSystem::Lock final : public FileLock {
 public:
  Lock(std::shared_ptr<State> state, std::string key, NodePointer node)
      : state_(std::move(state)), key_(std::move(key)), node_(std::move(node)) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() override {
    const std::lock_guard lock(state_->mutex);
    state_->locks.erase(key_);
  }
  bool is_in_place() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->find(key_) == node_;
  }
  void touch() noexcept override {}

 private:
  std::shared_ptr<State> state_;
  std::string key_;
  NodePointer node_;
};

MemoryFileSystem::MemoryFileSystem() : state_(std::make_shared<State>()) {}
MemoryFileSystem::~MemoryFileSystem() = default;

int MemoryFileSystem::operations() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->trace.size());
}

std::vector<std::string> MemoryFileSystem::trace() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trace;
}

void MemoryFileSystem::fail_at(int operation, int error, int times) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_from = operation;
  state_->fail_until = operation + times;
  state_->fail_error = error;
}

void MemoryFileSystem::lose_power_at(int operation) {
  const std::lock_guard lock(state_->mutex);
  state_->power_lost_at = operation;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_power_loss(Unsynced unsynced) const {
  const std::lock_guard lock(state_->mutex);
  auto disk = std::make_unique<MemoryFileSystem>();
  disk->state_->root = survivor(*state_->root, unsynced);
  disk->state_->free_bytes = state_->free_bytes;
  return disk;
}

void MemoryFileSystem::set_free_bytes(std::int64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->free_bytes = bytes;
}

void MemoryFileSystem::corrupt(const Path& path, std::int64_t offset) {
  const std::lock_guard lock(state_->mutex);
  const NodePointer node = state_->find(path);
  const auto at = static_cast<std::size_t>(offset);
  LOCKSTEP_ASSERT(node != nullptr && at < node->data.size(), "the corrupted byte must exist");
  node->data[at] ^= std::byte{1};
  node->durable_data = node->data;
}

std::unique_ptr<WritableFile> MemoryFileSystem::create(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("create", path);
  if (state_->find(path) != nullptr) {
    throw_io_error("create", path, EEXIST);
  }
  return std::make_unique<File>(state_, state_->add_file(path), path);
}

std::unique_ptr<WritableFile> MemoryFileSystem::open_append(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("open", path);
  NodePointer node = state_->find(path);
  if (node != nullptr && node->is_directory) {
    throw_io_error("open", path, EISDIR);
  }
  return std::make_unique<File>(state_, node != nullptr ? node : state_->add_file(path), path);
}

std::unique_ptr<RandomAccessFile> MemoryFileSystem::open(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  NodePointer node = state_->find(path);
  if (node == nullptr || node->is_directory || node->link) {
    throw_io_error("open", path, node == nullptr ? ENOENT : node->link ? ELOOP : EISDIR);
  }
  return std::make_unique<Reader>(state_, std::move(node), path);
}

void MemoryFileSystem::create_directories(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("create", path);
  NodePointer node = state_->root;
  for (const std::string& name : State::parts(path)) {
    NodePointer& child = node->entries[name];
    if (child == nullptr) {
      child = std::make_shared<Node>(Node{.is_directory = true});
    } else if (!child->is_directory) {
      throw_io_error("create", path, ENOTDIR);
    }
    node = child;
  }
}

void MemoryFileSystem::sync_directory(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("sync", path);
  const NodePointer node = state_->find(path);
  if (node == nullptr || !node->is_directory) {
    throw_io_error("open", path, node == nullptr ? ENOENT : ENOTDIR);
  }
  node->durable_entries = node->entries;
}

void MemoryFileSystem::rename(const Path& from, const Path& to) { move("rename", from, to, /*may_replace=*/false); }
void MemoryFileSystem::replace(const Path& from, const Path& to) { move("replace", from, to, /*may_replace=*/true); }

void MemoryFileSystem::move(std::string_view verb, const Path& from, const Path& to, bool may_replace) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = fmt::format("rename {} to", from.string());
  if (const int error = state_->begin(verb, fmt::format("{} {}", from.string(), to.string())); error != 0) {
    throw_io_error(action, to, error);
  }
  const NodePointer node = state_->find(from);
  if (node == nullptr) {
    throw_io_error(action, to, ENOENT);
  }
  if (const NodePointer target = state_->find(to); target != nullptr && (!may_replace || target->is_directory)) {
    throw_io_error(action, to, may_replace ? EISDIR : EEXIST);
  }
  state_->parent(action, to).entries[to.filename().string()] = node;
  state_->parent(action, from).entries.erase(from.filename().string());
}

void MemoryFileSystem::replace_link(const Path& link, const Path& target) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("link", link);
  if (const NodePointer existing = state_->find(link); existing != nullptr && !existing->link) {
    throw_io_error("create the link", link, EEXIST);
  }
  state_->add_file(link)->link = target;
}

std::optional<Path> MemoryFileSystem::read_link(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  const NodePointer node = state_->find(path);
  return node == nullptr ? std::nullopt : node->link;
}

void MemoryFileSystem::remove(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("remove", path);
  if (const NodePointer node = state_->find(path); node != nullptr) {
    if (node->is_directory) {
      throw_io_error("remove", path, EISDIR);
    }
    state_->parent("remove", path).entries.erase(path.filename().string());
  }
}

void MemoryFileSystem::remove_all(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("remove", path);
  if (state_->find(path) != nullptr) {
    state_->parent("remove", path).entries.erase(path.filename().string());
  }
}

bool MemoryFileSystem::exists(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  return state_->find(path) != nullptr;
}

std::vector<std::string> MemoryFileSystem::list(const Path& path) {
  const std::lock_guard lock(state_->mutex);
  const NodePointer node = state_->find(path);
  std::vector<std::string> names;
  if (node != nullptr) {
    for (const auto& entry : node->entries) {
      names.push_back(entry.first);
    }
  }
  return names;
}

std::int64_t MemoryFileSystem::free_bytes(const Path&) {
  const std::lock_guard lock(state_->mutex);
  return state_->free_bytes;
}

std::unique_ptr<FileLock> MemoryFileSystem::try_lock(const Path& path, const std::string& my_text, std::string& owner) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_or_throw("lock", path);
  const std::string key = path.lexically_normal().string();
  const auto [holder, taken] = state_->locks.emplace(key, my_text);
  if (!taken) {
    owner = holder->second;
    return nullptr;
  }
  const NodePointer existing = state_->find(path);
  const NodePointer node = existing != nullptr ? existing : state_->add_file(path);
  const auto text = std::as_bytes(std::span(my_text));
  node->data.assign(text.begin(), text.end());
  return std::make_unique<Lock>(state_, key, node);
}

}  // namespace lockstep
