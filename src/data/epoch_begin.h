// The way back to the beginning of an epoch.
#pragma once

#include <lockstep/data/data_loader.h>

namespace lockstep {

/// Collective, as `source` is. Goes to the beginning of the current epoch, if the program or an exception has left the
/// source in the middle of one. Returns where it was.
inline LoaderPosition seek_epoch_begin(BatchSource& source) {
  LoaderPosition before = source.position();
  if (before.consumed > 0) {
    source.seek({.epoch = before.epoch, .global_batch = before.global_batch});
  }
  return before;
}

}  // namespace lockstep
