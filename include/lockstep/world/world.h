// lockstep/world/world.h
//
// Rank, world size and collectives. A World is move-only, passed by reference and never global. Callers need no special
// case for size 1: its collectives return at once. Only store() needs other ranks.
//
// Two planes: the data plane moves tensors on device(); the control plane moves host values over CPU sockets and never
// touches the device or its stream. Only one thread may use a World, and every rank must call the collectives in the
// same order. A second thread uses its own channel().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/store.h>
#include <lockstep/fwd.h>

namespace [[gnu::visibility("default")]] lockstep {

/// How a reduction combines the values of the ranks.
enum class Reduce { sum, mean, min, max };

/// The ranks of a run as one of them sees them.
class World {
 public:
  /// Collective: returns when all ranks are connected. Blocks up to dist.init_timeout_s and logs the missing ranks
  /// every 10 s. Throws: CommError naming the missing ranks (exit 124), or the setting on which ranks disagree (exit
  /// 78).
  static World connect(const Plan& plan, const Identity& identity);
  /// A world of one: no sockets, no process group.
  static World single(c10::Device device);

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const noexcept;        ///< from 0
  int size() const noexcept;        ///< number of ranks
  int local_rank() const noexcept;  ///< among those of this node
  int local_size() const noexcept;  ///< number of ranks on this node
  int node() const noexcept;        ///< from 0
  int nodes() const noexcept;       ///< nodes may have different numbers of ranks
  bool is_main() const noexcept;    ///< rank 0
  c10::Device device() const noexcept;

  // Data plane: tensors on device(). Throws: CommError naming the operation and the missing ranks; Error for a tensor
  // that cannot be sent, for a result without memory of its own, or for a wrong root.
  void all_reduce(const at::Tensor& tensor, Reduce op);    ///< Collective. In place.
  void broadcast(const at::Tensor& tensor, int root = 0);  ///< Collective. In place.
  /// Collective. Tensors may differ in dimension 0 only. Returns a new tensor without a graph: rank 0's, rank
  /// 1's, ... along dimension 0; with one: all_gather_with_grad() of parallel/all_gather.h. Throws: Error (no dimension
  /// 0), CommError (exit 78: they differ in another dimension or in the dtype).
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor);

  // Control plane: host values. `what` names the operation in messages.
  void barrier(std::string_view what);  ///< Collective.
  bool any(bool value);                 ///< Collective. Whether it is true on at least one rank.
  bool all(bool value);                 ///< Collective. Whether it is true on every rank.
  /// Collective. Returns the result, the same on all ranks.
  [[nodiscard]] double all_reduce(double value, Reduce op);
  /// Collective. Every rank's bytes, in the order of the ranks, on every rank.
  [[nodiscard]] std::vector<std::string> gather(std::string_view bytes);
  /// Collective. Returns those of `root`.
  [[nodiscard]] std::string broadcast_bytes(std::string_view bytes, int root = 0);
  /// Collective. Rank 0 runs `work` while the others wait, however long it takes; then the others run it. If one rank
  /// throws, all ranks throw: an Error of this library with its type, text, hint and exit code, any other exception as
  /// a CommError with its text.
  void main_first(std::string_view what, const std::function<void()>& work);
  /// Collective. Ranks run `work` one after another, in order. Time and exceptions as in main_first.
  void one_by_one(std::string_view what, const std::function<void()>& work);

  /// Collective. A second, independent world of the same ranks on the CPU for ONE background thread.
  World channel(std::string_view purpose);
  /// A new connection to the rendezvous store with a separate key prefix. Not a collective. Throws: CommError in a
  /// world of one rank, which has no store.
  std::unique_ptr<Store> store(std::string_view prefix) const;

 private:
  friend struct WorldAccess;  // src/world/world_access.h: gives parallel/ the process group
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
