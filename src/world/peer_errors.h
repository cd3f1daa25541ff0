// Exceptions of LibTorch: whose failure they are, and what a rank says about a lost peer.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include <lockstep/fwd.h>

namespace lockstep {

inline constexpr const char* kPeerHint = "another rank failed or is late; see its own message";

/// True for errors of this rank's own GPU, also those that NCCL reports: no other rank is the cause.
bool is_gpu_failure(const std::exception& error) noexcept;

/// True for exceptions of Gloo, NCCL and c10d about a lost peer or network; false for errors in the caller's code.
bool is_peer_failure(const std::exception& error) noexcept;

/// The message as one line, without LibTorch's backtrace.
std::string plain_text(const std::exception& error);

/// Runs `work`, which calls the process group directly. An exception about a lost peer becomes a CommError that names
/// `what`; other exceptions are passed on.
void with_peers(const World& world, std::string_view what, const std::function<void()>& work);

}  // namespace lockstep
