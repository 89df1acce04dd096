// cuda_runtime.h of the virtual GPU.
#pragma once
#include "../vgpu_device.h"
