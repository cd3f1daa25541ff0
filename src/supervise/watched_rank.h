// One rank as its supervisor sees it: the process, its messages and its output. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "ipc/channel.h"
#include "supervise/memory_watch.h"
#include "supervise/rank_output.h"
#include "supervise/worker_process.h"

namespace lockstep {

class WatchedRank {
 public:
  WatchedRank(WorkerProcess process, RankOutput output);

  WorkerProcess& process() noexcept { return process_; }
  const WorkerProcess& process() const noexcept { return process_; }
  RankOutput& output() noexcept { return output_; }
  const MemoryWatch& memory() const noexcept { return memory_; }

  /// The process that announces its end: the first one, or a program that a script has started as its child.
  pid_t pid() const noexcept { return program_pid_; }
  bool has_script() const noexcept { return program_.is_open(); }  ///< a script has started this process
  /// To this process; while none is known, and after its end, to all of the rank's process group.
  void send_signal(int signal) const noexcept;
  int end_fd() const noexcept;  ///< readable when the rank may have ended: see has_ended()
  /// False: a stop request ended the script of the rank, but not the program, which saves what it has done. The program
  /// gets the request, too. Call it when end_fd() is readable.
  bool has_ended();

  std::optional<Message> receive();
  bool has_sent() const noexcept { return has_sent_; }  ///< a message; a program of another library sends none
  /// What it told of its work before it announced its failure; "": nothing.
  const std::string& what_is_left() const noexcept { return what_is_left_; }
  void keep_what_is_left(std::string text) { what_is_left_ = std::move(text); }
  /// Readable when there is a message; -1 after the process has closed its end.
  int channel_fd() const noexcept { return channel_is_open_ ? process_.channel().fd() : -1; }
  void leave_channel() noexcept { channel_is_open_ = false; }

  Descriptor& pipe(OutputStream stream) noexcept;
  /// Reads the pipe up to so many times, and closes it at its end.
  void read_pipe(OutputStream stream, int reads);
  /// After the end of the process: reads what the pipes hold and closes them. A process outside the worker's group may
  /// keep them open for ever, so that this does not wait for their end.
  void finish_output();

 private:
  void close_pipe(OutputStream stream);

  WorkerProcess process_;
  RankOutput output_;
  MemoryWatch memory_;
  pid_t program_pid_;
  Descriptor program_{};  // of program_pid_, if it is not the first process
  bool script_is_gone_ = false;
  std::string what_is_left_{};
  bool has_sent_ = false;
  bool channel_is_open_ = true;
};

}  // namespace lockstep
