// lockstep/lockstep.h
//
// Includes what a training program needs.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/run.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>
