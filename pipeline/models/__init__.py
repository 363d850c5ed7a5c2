"""Models: a catalogue of pinned weights, ONNX Runtime sessions, and the arithmetic around them."""
