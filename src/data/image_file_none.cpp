// Where libspng or libjpeg-turbo was not found.
#include <lockstep/base/error.h>

#include "data/image_file.h"

namespace lockstep {

void check_image_decoders() {
  throw ConfigError("image_folder: this build of lockstep cannot decode images",
                    "install libspng and TurboJPEG (Debian: libspng-dev libturbojpeg0-dev), then configure and build "
                    "lockstep again");
}

void decode_image(std::span<const std::byte>, const AllocateImage&) { check_image_decoders(); }

}  // namespace lockstep
