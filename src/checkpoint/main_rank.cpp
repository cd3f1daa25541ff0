#include "checkpoint/main_rank.h"

#include <exception>

#include "world/remote_error.h"

namespace lockstep {
namespace {

// The first byte of a message distinguishes a result from a failure.
constexpr char kResult = '=';
constexpr char kFailure = '!';

}  // namespace

std::vector<std::string> run_on(World& world, std::string_view what, bool mine,
                                const std::function<std::string()>& work) {
  std::string message{kResult};
  std::exception_ptr error;
  world.main_first(what, [&] {
    if (!mine) {
      return;
    }
    try {
      message += work();
    } catch (...) {
      error = std::current_exception();
      message = kFailure + encode_current_error();
    }
  });
  // Mostly rank 0 alone has something to say: O(log n), where a gather is O(n) on each rank.
  std::vector<std::string> results(static_cast<std::size_t>(world.size()), std::string{kResult});
  if (world.any(mine && !world.is_main())) {
    results = world.gather(message);
  } else {
    results.front() = world.broadcast_bytes(message);
  }
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].front() == kFailure) {
      if (error && rank == static_cast<std::size_t>(world.rank())) {
        std::rethrow_exception(error);
      }
      throw_remote_error(std::string_view(results[rank]).substr(1), what, static_cast<int>(rank));
    }
    results[rank].erase(0, 1);
  }
  return results;
}

std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work) {
  return run_on(world, what, world.is_main(), work).front();
}

}  // namespace lockstep
