"""What one video may cost before it is turned away or its decoder killed."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Limits:
    """Per video; the defaults suit one-minute uploads and survive long ones.

    What the file claims is checked against the first ten; `max_boxes` and `max_edits` bound the index of an MP4,
    `max_names` the tags of Matroska and `max_script_bytes` the metadata of FLV.
    `idle_read_bytes` bounds what is read without finding a picture (metadata, sound, holes), `demux_bytes` the
    sequential pass over containers without an index, and `retained_bytes` the packets kept from it. `decode_bytes`
    bounds the compressed data decoded for analysis: cost follows it. Larger keyframe images than
    `max_image_pixels` are scaled down to it. The rest are limits of the child process: `wall_s` is watched by the
    parent, which kills;
    `read_slack_bytes` is what may be read beyond twice the file's size.
    """

    max_file_bytes: int = 20 * GIB
    max_duration_s: float = 4 * 3600.0
    max_pixels: int = 8192 * 4320
    max_samples: int = 2_000_000
    max_moov_bytes: int = 64 * MIB
    max_boxes: int = 20_000
    max_edits: int = 1000
    max_names: int = 5000
    max_script_bytes: int = 256 * 1024
    max_streams: int = 64
    idle_read_bytes: int = 64 * MIB
    demux_bytes: int = 2 * GIB
    retained_bytes: int = 256 * MIB
    max_image_pixels: int = 1920 * 1080
    wall_s: float = 60.0
    cpu_s: float = 60.0
    memory_bytes: int = 2 * GIB
    read_slack_bytes: int = 64 * MIB
    max_open_files: int = 64
    videos_per_child: int = 20
