// cuda_runtime_api.h of the virtual GPU.
#pragma once
#include "../vgpu_types.h"
