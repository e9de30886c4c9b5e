//! Kernel table of the family `conv2d`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_conv2d {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            conv2d {
                conv2d "conv2d" Conv2dParams Own {
                    depthwise_f32_s1_x4: Direct, F32, Depthwise<4, 1>;
                    depthwise_f32_s1: Direct, F32, Depthwise<1, 1>;
                    depthwise_f32_s2_x4: Direct, F32, Depthwise<4, 2>;
                    depthwise_f32_s2: Direct, F32, Depthwise<1, 2>;
                    depthwise_f32_any: Direct, F32, DepthwiseAny;
                    depthwise_f32_plane: Direct, F32, DepthwisePlane;
                    few_channels_f32_k3: Direct, F32, FewChannels<3>;
                    few_channels_f32_k7: Direct, F32, FewChannels<7>;
                    depthwise_f16_s1_x4: Direct, F16, Depthwise<4, 1>;
                    depthwise_f16_s1: Direct, F16, Depthwise<1, 1>;
                    depthwise_f16_s2_x4: Direct, F16, Depthwise<4, 2>;
                    depthwise_f16_s2: Direct, F16, Depthwise<1, 2>;
                    depthwise_f16_any: Direct, F16, DepthwiseAny;
                    depthwise_f16_plane: Direct, F16, DepthwisePlane;
                    few_channels_f16_k3: Direct, F16, FewChannels<3>;
                    few_channels_f16_k7: Direct, F16, FewChannels<7>;
                    depthwise_bf16_s1_x4: Direct, Bf16, Depthwise<4, 1>;
                    depthwise_bf16_s1: Direct, Bf16, Depthwise<1, 1>;
                    depthwise_bf16_s2_x4: Direct, Bf16, Depthwise<4, 2>;
                    depthwise_bf16_s2: Direct, Bf16, Depthwise<1, 2>;
                    depthwise_bf16_any: Direct, Bf16, DepthwiseAny;
                    depthwise_bf16_plane: Direct, Bf16, DepthwisePlane;
                    few_channels_bf16_k3: Direct, Bf16, FewChannels<3>;
                    few_channels_bf16_k7: Direct, Bf16, FewChannels<7>;
                }
            }
        }
    };
}
