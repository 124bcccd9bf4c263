"""What is to be seen in a picture: labels by a model that runs here, text, and labels by Rekognition."""
