//! The rows of the family `discover`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_discover {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            discover {
                "detect" DetectParams Detection {
                    detect_16_128x1 F16: Direct, MicroTiles<128, 1, STEP_TILES>;
                    detect_16_64x1 F16: Direct, MicroTiles<64, 1, STEP_TILES>;
                    detect_16_32x1 F16: Direct, MicroTiles<32, 1, STEP_TILES>;
                    detect_16_16x16 F16: Direct, MicroTiles<16, 16, STEP_TILES>;
                    detect_16_1x32 F16: Direct, MicroTiles<1, 32, STEP_TILES>;
                    detect_16_1x64 F16: Direct, MicroTiles<1, 64, STEP_TILES>;
                    detect_32_128x1 F32: Direct, MicroTiles<128, 1, STEP_TILES>;
                    detect_32_64x1 F32: Direct, MicroTiles<64, 1, STEP_TILES>;
                    detect_32_32x1 F32: Direct, MicroTiles<32, 1, STEP_TILES>;
                    detect_32_16x16 F32: Direct, MicroTiles<16, 16, STEP_TILES>;
                    detect_32_1x32 F32: Direct, MicroTiles<1, 32, STEP_TILES>;
                    detect_32_1x64 F32: Direct, MicroTiles<1, 64, STEP_TILES>;
                    detect_8_128x1 Int8: Direct, MicroTiles<128, 1, STEP_TILES>;
                    detect_8_64x1 Int8: Direct, MicroTiles<64, 1, STEP_TILES>;
                    detect_8_32x1 Int8: Direct, MicroTiles<32, 1, STEP_TILES>;
                    detect_8_16x16 Int8: Direct, MicroTiles<16, 16, STEP_TILES>;
                    detect_8_1x32 Int8: Direct, MicroTiles<1, 32, STEP_TILES>;
                    detect_8_1x64 Int8: Direct, MicroTiles<1, 64, STEP_TILES>;
                    detect_1_128x1 Int8: Direct, MicroTiles<128, 1, STEP_BITS>;
                    detect_1_64x1 Int8: Direct, MicroTiles<64, 1, STEP_BITS>;
                    detect_1_32x1 Int8: Direct, MicroTiles<32, 1, STEP_BITS>;
                    detect_1_16x16 Int8: Direct, MicroTiles<16, 16, STEP_BITS>;
                    detect_1_1x32 Int8: Direct, MicroTiles<1, 32, STEP_BITS>;
                    detect_1_1x64 Int8: Direct, MicroTiles<1, 64, STEP_BITS>;
                    detect_pack_128x1 F16: Direct, MicroTiles<128, 1, STEP_PACK>;
                    detect_pack_64x1 F16: Direct, MicroTiles<64, 1, STEP_PACK>;
                    detect_pack_32x1 F16: Direct, MicroTiles<32, 1, STEP_PACK>;
                    detect_pack_32_128x1 F32: Direct, MicroTiles<128, 1, STEP_PACK>;
                    detect_pack_32_64x1 F32: Direct, MicroTiles<64, 1, STEP_PACK>;
                    detect_pack_32_32x1 F32: Direct, MicroTiles<32, 1, STEP_PACK>;
                    detect_lengths F32: Direct, DetectLengths;
                    detect_choices F32: Direct, DetectChoices;
                }
                "detect" ChannelsParams Detection {
                    channels_mark_16 F16: Direct, MarkChannels;
                    channels_pack_16 F16: Direct, PackChannels;
                }
                "live_rows" LiveRowsParams Live {
                    live_rows_pack_f16 F16, live_rows_pack_bf16 Bf16: Direct, PackRows;
                    live_rows_norm_f16 F16, live_rows_norm_bf16 Bf16: Direct, NormRows;
                }
                "detect" TransposeParams Own {
                    transpose_16 F16: Direct, TransposeTile;
                }
                "route" RouteParams Own {
                    route_count F32: Direct, RouteCount;
                    route_place F32: Direct, RoutePlace;
                    route_sum_f16 F16, route_sum_bf16 Bf16: Direct, RouteSum;
                    route_gradient_f16 F16, route_gradient_bf16 Bf16: Direct, RouteGradient;
                    route_gate_f16 F16, route_gate_bf16 Bf16: Direct, RouteGate;
                    route_gate_gradient_f16 F16, route_gate_gradient_bf16 Bf16: Direct, RouteGateGradient;
                }
                "route" RouterParams Own {
                    router_choose_f32 F32, router_choose_f16 F16, router_choose_bf16 Bf16: Direct, RouterChoose;
                    router_gradient_f32 F32, router_gradient_f16 F16, router_gradient_bf16 Bf16: Direct, RouterGradient;
                }
            }
        }
    };
}
