"""What is told about sound and film in the containers that hold them.

Written here instead of taken from libmediainfo, the usual choice: that library follows what a file names. A playlist,
or a cover picture that is a playlist, makes it open local files and URLs, and it cannot be told not to.
"""
